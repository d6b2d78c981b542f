"""The replicas as an ingress sees them: Ray Serve chooses one for each call, by the model where there is one."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from grpc import StatusCode
from grpc.aio import AioRpcError
from ray.exceptions import ObjectLostError, RayActorError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle
from repoagent_server.grpc.response import STATUS
from repoagent_server.http.messages import STATUS_OF

from repoagent.errors import CancelledError, ErrorCode, InternalError, OverloadedError, RepoAgentError, UnavailableError
from repoagent_ray.wire import Failure, GrpcEnd, HttpHead

logger = logging.getLogger(__name__)

#: A replica that ended, or whose answer went with it.
_ENDED = (RayActorError, ObjectLostError, ReplicaUnavailableError)
#: The codes of grpcio for one that ends, where Ray does not translate it.
_LOST = (StatusCode.UNAVAILABLE, StatusCode.CANCELLED)


_T = TypeVar("_T")
_PATIENCE: Final = 60.0
"""Seconds that replicas have to answer a question. Loads, unloads and inference have no limit here."""
_PLAIN: Final = "pickle"
"""What goes between processes is of types that they have: Ray's default pickles code as well, which takes longer."""
_HANDLES: Final = 4096
"""Handles that are kept: making one takes longer than looking it up."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What all replicas answered."""

    good: list[Any] = field(default_factory=list)
    errors: list[RepoAgentError] = field(default_factory=list)
    """Of those that refused, and of those that ended before they answered."""

    def any(self) -> list[Any]:
        """The good answers.

        Raises:
            RepoAgentError: there are none.
        """
        if not self.good:
            raise self.errors[0] if self.errors else UnavailableError("Server not ready: there are no replicas")
        return self.good

    def all(self) -> list[Any]:
        """The answers.

        Raises:
            RepoAgentError: one of them is an error.
        """
        if self.errors:
            raise self.errors[0]
        return self.good


class Replicas:
    """Calls of replicas. ``once`` and ``stream`` belong to ``loop``; the others wait for it, on threads."""

    def __init__(self, handle: DeploymentHandle, loop: asyncio.AbstractEventLoop) -> None:
        self._handle = handle.options(_by_reference=False, request_serialization=_PLAIN, response_serialization=_PLAIN)
        self._loop = loop
        self._known: set[str] = set()
        """Models that a repository has. What else clients name must not become a model of Ray's: that would cost one
        that is loaded its place, and Ray remembers each name."""
        self._handles: dict[tuple[str, str, bool], DeploymentHandle] = {}

    # -- requests -------------------------------------------------------------------------------------------------

    async def once(self, method: str, model: str, *arguments: Any) -> Any:
        """What ``method``, which yields one answer, yields in the replica that Ray chooses for ``model``.

        It is a stream to Ray, in which a replica reports at once that it has accepted the request. Ray sends that to no
        other one when the replica ends: a request that ends its replica would end them all.

        Raises:
            RepoAgentError: no replica can answer, or it ended before it did.
        """
        answer = None
        async for piece in self.stream(method, model, *arguments):
            answer = piece
        if _is_missing(answer):
            self._known.discard(model)  # it may have gone from its repository
        return answer

    async def stream(self, method: str, model: str, *arguments: Any) -> AsyncIterator[Any]:
        """What ``method`` yields in the replica that Ray chooses for ``model``, piece by piece.

        Raises:
            RepoAgentError: as :meth:`once`.
        """
        with _ray_faults():
            pieces = self._to(method, await self._place(model), stream=True).remote(*arguments)
            ended = False
            try:
                async for piece in pieces:
                    yield piece
                ended = True
            finally:
                if not ended:
                    pieces.cancel()

    async def _place(self, model: str) -> str:
        """The model by which Ray is to choose: none where no repository has it."""
        if model in self._known:
            return model
        if not model or not await self._to("knows").remote(model):
            return ""
        self._known.add(model)
        return model

    async def model_of(self, name: str) -> str:
        """The model that a name in OpenAI's API means: ``MODEL:ADAPTER`` is an adapter of one, unless it is one.

        Raises:
            RepoAgentError: no replica can answer.
        """
        model, colon, _ = name.partition(":")
        with _ray_faults():
            return name if not colon or await self._place(name) else model

    # -- questions ------------------------------------------------------------------------------------------------

    def ask(self, method: str, model: str, *arguments: Any, patience: float | None = _PATIENCE) -> Any:
        """What ``method`` of one replica answers. Ray chooses it by the model, unless no repository has that.

        Raises:
            RepoAgentError: it answers so, or none can answer.
        """
        return self._wait(self._ask(method, model, arguments, patience))

    def ask_all(self, method: str, *arguments: Any, patience: float | None = _PATIENCE) -> "Answers":
        """What every replica answers to ``method``.

        Raises:
            RepoAgentError: there are no replicas.
        """
        return self._wait(self._ask_all(method, arguments, patience))

    def _wait(self, answer: Coroutine[Any, Any, _T]) -> _T:
        """What ``answer`` brings: Ray's router runs on the event loop."""
        return asyncio.run_coroutine_threadsafe(answer, self._loop).result()

    async def _ask(self, method: str, model: str, arguments: tuple[Any, ...], patience: float | None) -> Any:
        with _ray_faults():
            place = await asyncio.wait_for(self._place(model), _PATIENCE)
            return _opened(await asyncio.wait_for(self._to(method, place).remote(*arguments), patience))

    async def _ask_all(self, method: str, arguments: tuple[Any, ...], patience: float | None) -> "Answers":
        with _ray_faults():
            asked = self._handle.broadcast(method, *arguments)
            results = await asked.results_async(timeout_s=patience, return_exceptions=True)
        found = Answers()
        for result in results:
            if isinstance(result, Failure):
                found.errors.append(result.error())
            elif isinstance(result, Exception):
                found.errors.append(_public_error(result))
            else:
                found.good.append(result)
        return found

    def _to(self, method: str, model: str = "", *, stream: bool = False) -> DeploymentHandle:
        """The handle for calls of ``method``, about a model or none."""
        key = (method, model, stream)
        handle = self._handles.get(key)
        if handle is None:
            if len(self._handles) >= _HANDLES:
                self._handles.clear()
            handle = self._handle.options(method_name=method, multiplexed_model_id=model, stream=stream)
            self._handles[key] = handle
        return handle


def _opened(answer: Any) -> Any:
    """``answer``, unless it is an error."""
    if isinstance(answer, Failure):
        raise answer.error()
    return answer


def _is_missing(answer: Any) -> bool:
    """Whether a replica has answered that there is no such model."""
    if isinstance(answer, HttpHead):
        return answer.status == STATUS_OF[ErrorCode.NOT_FOUND]
    return isinstance(answer, GrpcEnd) and answer.code == STATUS[ErrorCode.NOT_FOUND].value[0]


def _public_error(error: Exception) -> RepoAgentError:
    """``error`` as clients get it. Whether a request was executed by a replica that ended is not known."""
    if isinstance(error, RepoAgentError):
        return error
    if isinstance(error, _ENDED) or (isinstance(error, AioRpcError) and error.code() in _LOST):
        return UnavailableError("the replica that had the request has ended before it answered; send it again")
    if isinstance(error, BackPressureError):
        return OverloadedError("Exceeds maximum queue size: too many requests wait for a replica; send it later")
    if isinstance(error, DeploymentUnavailableError):
        return UnavailableError("Server not ready: there are no replicas")
    if isinstance(error, TaskCancelledError):
        return CancelledError("the request was cancelled")
    if isinstance(error, TimeoutError):
        return UnavailableError("the replicas have not answered in time")
    logger.error("a call of a replica failed: %s", error, exc_info=error)
    return InternalError(f"unexpected {type(error).__name__}; the server's log has the details")


@contextmanager
def _ray_faults() -> Iterator[None]:
    """Turn what Ray raises in the block into a :class:`RepoAgentError`."""
    try:
        yield
    except Exception as error:
        raise _public_error(error) from error
