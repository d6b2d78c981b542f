"""A replica: a server of its own, whose models come and go with Ray Serve's multiplexing."""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from ray import serve
from repoagent_server.grpc.response import code_for, details
from repoagent_server.shared.client_text import client_text
from repoagent_server.shared.pools import Pools

from repoagent.api.report import LoadReport
from repoagent.audit import Actor, acting_as
from repoagent.errors import InvalidArgumentError, RepoAgentError
from repoagent.public_text import public_values
from repoagent.server import Server
from repoagent.serving.core import ServingCore
from repoagent_ray.logs import Logs, process_name
from repoagent_ray.replica_grpc import ReplicaGrpc
from repoagent_ray.replica_http import ReplicaHttp, refused
from repoagent_ray.resident import Resident
from repoagent_ray.settings import Settings
from repoagent_ray.wire import Failure, GrpcAnswer, GrpcCall, GrpcEnd, HttpCall, HttpHead

_QUESTIONS: Final = frozenset(
    {"attestation", "decoupled", "model_config", "model_loaded", "model_metadata", "model_ready", "ready", "statistics"}
)
"""What others in the cluster may ask the core of a replica; none of these changes anything."""


class Replica:
    """What Ray calls in the process of a replica. Its methods run on one event loop.

    A call that Ray multiplexed is about that model, which has a place here from then on. Others are about the server,
    or about a model that no repository has.
    """

    def __init__(self, settings: Settings) -> None:
        """Start a server without models.

        Raises:
            RepoAgentError: a setting makes no sense, or a repository cannot be read.
        """
        self._settings = settings
        self._pools = Pools("replica")
        self._residents: dict[str, Resident] = {}
        self._searches: dict[str, asyncio.Future[Any]] = {}
        self._logs = Logs(settings, "replica")
        self._server = Server(settings.server_options(self._logs.audit)).start()
        self._core = self._server.core
        self._http = ReplicaHttp(self._server, settings, self._pools)
        self._grpc = ReplicaGrpc(self._server, settings, self._pools)

    def check_health(self) -> None:
        """Raise if the server has stopped: Ray replaces the replica."""
        if not self._core.live():
            raise RuntimeError("the server of this replica has stopped")

    async def __del__(self) -> None:
        """Ray calls it once, when it ends the replica in good order: every model is unloaded through its agents."""
        loop = asyncio.get_running_loop()
        if self._core.live():
            await loop.run_in_executor(None, self._server.stop)
        await loop.run_in_executor(None, self._logs.close)

    # -- requests -------------------------------------------------------------------------------------------------

    async def http(self, call: HttpCall) -> AsyncIterator[HttpHead]:
        """One request, one answer: see :meth:`Replicas.once`."""
        try:
            async with self._model():
                answer = await self._http.once(call)
        except RepoAgentError as error:
            answer = refused(error, call)
        yield answer

    async def http_stream(self, call: HttpCall) -> AsyncIterator[HttpHead | bytes]:
        """One request, and an answer piece by piece, its head first."""
        try:
            async with self._model():
                async for piece in self._http.stream(call):
                    yield piece
        except RepoAgentError as error:
            yield refused(error, call)

    async def grpc(self, call: GrpcCall) -> AsyncIterator[bytes | GrpcAnswer | GrpcEnd]:
        """A message of ModelInfer, and its answer."""
        answer: bytes | GrpcAnswer | GrpcEnd
        try:
            async with self._model():
                answer = await self._grpc.once(call)
        except RepoAgentError as error:
            answer = GrpcEnd(code_for(error).value[0], details(client_text(error)))
        yield answer

    async def grpc_stream(self, call: GrpcCall) -> AsyncIterator[bytes | GrpcEnd | Failure]:
        """A message of ModelStreamInfer, and its answers."""
        try:
            async with self._model():
                async for message in self._grpc.stream(call):
                    yield message
        except RepoAgentError as error:
            yield Failure.of(error)

    # -- questions ------------------------------------------------------------------------------------------------

    async def knows(self, name: str) -> bool:
        """Whether a repository has a model of that name."""
        resident = self._residents.get(name)
        if resident is not None and not resident.left:
            return True
        search = self._searches.get(name)
        if search is None:  # one thread waits for the repositories, however many requests do
            search = self._searches[name] = asyncio.ensure_future(self._call(lambda: self._core.has_model(name)))
            search.add_done_callback(lambda _: self._searches.pop(name))
        return bool(await asyncio.shield(search))

    async def ask(self, question: str, *arguments: Any) -> Any:
        """What the core answers to ``question``, one of its methods, about a model that need not be loaded."""
        return await self._answer(lambda: _question(self._core, question)(*arguments))

    async def index(self, ready_only: bool) -> Any:
        """The models, and their states here."""
        return await self._answer(lambda: self._core.index(ready_only=ready_only))

    async def report(self, name: str) -> Any:
        """What the agents did when a model was last loaded here, or failed to load; None if it never was."""
        return await self._answer(lambda: _dict_of(self._core.report(name)))

    async def metrics(self) -> tuple[str, str]:
        """The name of this replica, and its metrics as Prometheus reads them."""
        return process_name(), await self._call(self._server.metrics)

    async def ask_loaded(self, question: str, *arguments: Any) -> Any:
        """The same about the model of this call, which is loaded for it."""
        try:
            async with self._model():
                return await self._answer(lambda: _question(self._core, question)(*arguments))
        except RepoAgentError as error:
            return Failure.of(error)

    async def load(self, name: str, actor: Actor) -> Any:
        """Load the model of this call for ``actor``, again if its files have changed: the report, or a failure."""
        try:
            with acting_as(actor):
                while await self._may_have_place():
                    resident = await self.resident(name)
                    report = await resident.reload()
                    if report is not None:
                        return _dict_of(report)
                return await self._answer(lambda: _dict_of(self._core.load(name)))  # its error has the reason
        except RepoAgentError as error:
            return Failure.of(error)

    async def reload(self, name: str, actor: Actor) -> Any:
        """Load a model again if it has a place here: as :meth:`load`. None if it has none."""
        resident = self._residents.get(name)
        if resident is None or not self._core.model_loaded(name):
            return None
        try:
            with acting_as(actor):
                return _dict_of(await resident.reload())
        except RepoAgentError as error:
            return Failure.of(error)

    async def unload(self, name: str, unload_dependents: bool, actor: Actor) -> Any:
        """Unload a model for ``actor`` once its requests have ended: None, or a failure."""
        resident = self._residents.get(name)
        with acting_as(actor):
            return await self._unload(name, resident, unload_dependents)

    async def _unload(self, name: str, resident: Resident | None, unload_dependents: bool) -> Any:
        try:
            if resident is not None:
                await resident.unload(unload_dependents=unload_dependents)
            else:
                await self._call(lambda: self._core.unload(name, unload_dependents=unload_dependents), waits=True)
        except RepoAgentError as error:
            return Failure.of(error)
        return None

    # -- models ---------------------------------------------------------------------------------------------------

    async def resident(self, name: str) -> Resident:
        """The place of a model here, made if need be: see :func:`replica_class`."""
        raise NotImplementedError

    def place(self, name: str) -> Resident:
        """A new place for a model."""
        resident = self._residents[name] = Resident(
            self._core,
            name,
            self._pools.waits,
            drain_seconds=self._settings.drain_seconds,
            alone=self._settings.most_replicas == 1,
            on_left=self._left,
        )
        return resident

    def _left(self, resident: Resident) -> None:
        if self._residents.get(resident.name) is resident:
            del self._residents[resident.name]

    @asynccontextmanager
    async def _model(self) -> AsyncIterator[None]:
        """The model of this call is loaded, and stays so until the end of the block.

        Raises:
            RepoAgentError: it cannot be loaded.
        """
        while await self._may_have_place():
            resident = await self.resident(serve.get_multiplexed_model_id())
            async with resident.use() as usable:
                if usable:
                    yield
                    return
        yield  # No repository has it: the server answers that.

    async def _may_have_place(self) -> bool:
        """Whether the model of this call may cost another one its place. An ingress may not know yet that it has gone
        from its repository."""
        name = serve.get_multiplexed_model_id()
        return bool(name) and await self.knows(name)

    async def _answer(self, work: Callable[[], Any]) -> Any:
        try:
            return await self._call(work)
        except RepoAgentError as error:
            return Failure.of(error)

    async def _call(self, work: Callable[[], Any], *, waits: bool = False) -> Any:
        """``work`` on a thread; one of its own kind if it ``waits`` for requests to end."""
        pool, context = self._pools.waits if waits else self._pools.work, contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(pool, context.run, work)


def replica_class(models: int) -> type[Replica]:
    """The class of replicas that have ``models`` models at a time. Ray wants to know the number with the class."""

    async def resident(self: Replica, name: str) -> Resident:
        return self.place(name)

    return type("Models", (Replica,), {"resident": serve.multiplexed(resident, max_num_models_per_replica=models)})


def _question(core: ServingCore, name: str) -> Callable[..., Any]:
    if name not in _QUESTIONS:
        raise InvalidArgumentError(
            f"'{name}' is not a question that a replica answers: {', '.join(sorted(_QUESTIONS))}"
        )
    method: Callable[..., Any] = getattr(core, name)
    return method


def _dict_of(report: LoadReport | None) -> dict[str, Any] | None:
    if report is None:
        return None
    document: dict[str, Any] = public_values(report.to_dict())
    return document
