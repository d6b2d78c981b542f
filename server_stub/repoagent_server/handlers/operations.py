"""The operations of a server besides inference, as one table that HTTP, gRPC and the ingress of Ray Serve run.

A new operation is a row of :data:`OPERATIONS`. What HTTP reads and writes of it is in ``http/routes.py``, what gRPC
does in ``grpc/service.py``.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from repoagent.audit import Actor, acting_as
from repoagent.errors import InternalError, NotFoundError, RepoAgentError, UnsupportedError
from repoagent.nested_text import read_json
from repoagent.public_text import public_values
from repoagent_server.access import Access, Caller, Need, Right, Scope
from repoagent_server.access.rights import KNOWN, OPEN, for_all, for_model, listed
from repoagent_server.handlers.headers import Api
from repoagent_server.handlers.inference import check_version
from repoagent_server.handlers.settings import check_model, log_settings, update_log, update_traces
from repoagent_server.handlers.shared_memory import NO_REGIONS, Regions
from repoagent_server.shared.core import Core

Pool = Literal["", "asks", "long", "waits", "work"]
"""Where a call runs that may block: one of :class:`~repoagent_server.shared.pools.Pools`, or "" for none."""

_FILE: Final = "file:"


@dataclass(frozen=True, slots=True)
class Call:
    """What a client asks for, whatever the protocol."""

    caller: Caller | None
    """Who asks; None without access control."""
    protocol: str
    request_id: str
    address: str
    name: str
    """The model, or the region of shared memory, that the request names; "" for none."""
    version: str
    """As the client writes it; "" for none."""
    read: Callable[[], Any]
    """Reads the rest of the request, and raises what is wrong with it. The operation calls it when the name is fine."""


@dataclass(slots=True)
class LoadParameters:
    """The parameters of a load request: an overriding configuration, and the contents of files by path."""

    config: str | None = None
    files: dict[str, bytes] = field(default_factory=dict)
    version: str = ""
    """The only version to load; "" for the whole model."""

    def add(self, name: str, value: str | bytes) -> None:
        """Take one parameter: ``config``, or ``file:PATH`` with its contents.

        Raises:
            InternalError: any other name (Triton's code and text).
        """
        if name == "config" and isinstance(value, str):
            self.config = value
        elif name.startswith(_FILE) and isinstance(value, bytes):
            self.files[name.removeprefix(_FILE).lstrip("/")] = value  # a leading slash means nothing, as in Triton
        else:
            raise InternalError("unexpected error on creating Triton parameter")

    def __bool__(self) -> bool:
        return self.config is not None or bool(self.files)


class Operations:
    """What the table calls. All methods may be called from any thread, return what JSON can carry, and raise
    RepoAgentError."""

    def __init__(self, core: Core, *, allow_load_parameters: bool = False, regions: Regions = NO_REGIONS) -> None:
        """``allow_load_parameters``: whether a load may bring a configuration and files. ``regions`` are those of all
        front ends of the server."""
        self._core = core
        self._allow_load_parameters = allow_load_parameters
        self._regions = regions

    def run(self, operation: "Operation", call: Call) -> Any:
        """Run ``operation`` for the client of ``call``: audit lines name this client."""
        caller = call.caller
        name, manages = (caller.name, caller.manages) if caller is not None else ("", None)
        with acting_as(Actor("client", name, call.protocol, call.request_id, call.address, manages)):
            return operation.method(self, call)

    def live(self, _: Call) -> bool:
        return self._core.live()

    def ready(self, _: Call) -> bool:
        return self._core.ready()

    def metadata(self, _: Call) -> dict[str, Any]:
        metadata = self._core.metadata()
        metadata["extensions"] = [*metadata["extensions"], *self._regions.extensions]
        return metadata

    def model_ready(self, call: Call) -> bool:
        """False also for a model or version that does not exist, as Triton answers."""
        try:
            return self._core.model_ready(call.name, check_version(call.version))
        except NotFoundError:
            return False

    def asks_model(self, model: str, version: str) -> bool:
        """Whether :meth:`model_ready` runs code of the model. False if it will raise."""
        try:
            return self._core.asks_model(model, check_version(version))
        except RepoAgentError:
            return False

    def model_metadata(self, call: Call) -> dict[str, Any]:
        return self._core.model_metadata(call.name, check_version(call.version))

    def model_config(self, call: Call) -> dict[str, Any]:
        return self._core.model_config(call.name, check_version(call.version))

    def statistics(self, call: Call) -> dict[str, Any]:
        """Of one version, all versions of a model, or all models that the client may see, as far as given."""
        statistics = self._core.statistics(call.name, check_version(call.version))
        return {**statistics, "model_stats": visible(statistics["model_stats"], call.caller)}

    def index(self, call: Call) -> list[dict[str, Any]]:
        """The models that the client may see; it reads whether only those that are ready are wanted."""
        return self.models(ready_only=call.read(), caller=call.caller)

    def models(self, *, ready_only: bool, caller: Caller | None) -> list[dict[str, Any]]:
        """The same for code of this server."""
        models: list[dict[str, Any]] = public_values(visible(self._core.index(ready_only=ready_only), caller))
        return models

    def load(self, call: Call) -> None:
        """Load or reload a model, or one version of it beside those that are loaded. It reads LoadParameters.

        Raises:
            UnsupportedError: there are parameters, and the operator has not allowed them.
            NotPermittedError: there are parameters, with which a model can call and become any other, and the client
                may not manage all models.
        """
        parameters: LoadParameters = call.read()
        if parameters and call.caller is not None:
            Access.require_all(call.caller, Right.MANAGE)
        with self._recorded(call.name):
            if parameters and not self._allow_load_parameters:
                raise UnsupportedError(
                    f"failed to load '{call.name}': a configuration or files in a load request are refused, because "
                    "their sender can replace a model and its checks. To accept them, start the server with "
                    "'--allow-load-parameters=true'"
                )
        files: Mapping[str, bytes] | None = parameters.files or None
        self._core.load(call.name, config=parameters.config, files=files, version=_number(parameters.version))

    @contextmanager
    def _recorded(self, model: str) -> Iterator[None]:
        """Record a load that is refused. What a client may not do is no such load: its front end reports it."""
        try:
            yield
        except RepoAgentError as error:
            self._core.audit.record("load", "refused", {"model": model, "error": str(error)})
            raise

    def unload(self, call: Call) -> None:
        """Unload a model, or one version of it, with which nothing else goes.

        It reads whether the models that it is made of are unloaded as well, and the version.

        Raises:
            NotPermittedError: they are, and the client may not manage all models.
        """
        dependents, version = call.read()
        number = _number(version)
        dependents = dependents and number is None
        if dependents and call.caller is not None:
            Access.require_all(call.caller, Right.MANAGE)
        self._core.unload(call.name, unload_dependents=dependents, version=number)

    def report(self, call: Call) -> dict[str, Any]:
        """What the agents did when a model was last loaded, or failed to load."""
        report = self._core.report(call.name)
        if report is None:
            raise NotFoundError(f"no load of model '{call.name}' has been reported yet")
        document: dict[str, Any] = public_values(report.to_dict())
        return document

    def attestation(self, call: Call) -> dict[str, Any]:
        """The signed receipt of the load that serves a model."""
        document = self._core.attestation(call.name, check_version(call.version))
        if document is None:
            raise NotFoundError(f"there is no receipt of model '{call.name}': it is not loaded, or leaves none")
        found: dict[str, Any] = read_json(document)
        return found

    def log_settings(self, call: Call) -> dict[str, Any]:
        """Make the LogChanges that it reads, and show all settings."""
        update_log(call.read(), self._core.audit)
        return log_settings()

    def trace_settings(self, call: Call) -> dict[str, Any]:
        """Make the TraceChanges that it reads, for all models or one, and show all settings."""
        check_model(self._core, call.name)
        update_traces(self._core, call.name, call.read())
        settings: dict[str, Any] = self._core.tracer.settings(call.name).to_dict()
        return settings

    def regions(self, call: Call) -> list[dict[str, Any]]:
        return [
            {"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.byte_size}
            for region in self._regions.status(call.name)
        ]

    def register_region(self, call: Call) -> None:
        """It reads key, offset and size."""
        self._regions.register(call.name, *call.read())

    def unregister_region(self, call: Call) -> None:
        self._regions.unregister(call.name)

    def cuda_regions(self, call: Call) -> list[dict[str, Any]]:
        self._regions.check_cuda(call.name)
        return []

    def register_cuda_region(self, call: Call) -> None:
        """There is no GPU to share the memory of. The request is read, so that it gets Triton's answer."""
        call.read()
        self._regions.register_cuda(call.name)

    def unregister_cuda_region(self, _: Call) -> None:
        """Clients ask for this without having registered anything; it succeeds in Triton too."""


def visible(rows: list[dict[str, Any]], caller: Caller | None) -> list[dict[str, Any]]:
    """Those of ``rows`` whose ``name`` is a model that ``caller`` may see; all of them without access control."""
    return rows if caller is None else [row for row in rows if caller.sees(row["name"])]


def check_repository(name: str) -> None:
    """Refuse a request that names a repository."""
    if name:
        raise UnsupportedError("'repository_name' specification is not supported")


def _number(version: str) -> int | None:
    """The number of a version as clients write it; None for "", which means the whole model."""
    text = check_version(version)
    return int(text) if text else None


@dataclass(frozen=True, slots=True)
class Operation:
    """One row. Access control, audit lines, the request log and errors are the business of what runs it."""

    name: str
    """The method of gRPC; "" if gRPC has none. HTTP reads nothing but the path of an operation without one."""
    method: Callable[[Operations, Call], Any]
    api: Api
    """The part that the operator can restrict."""
    needs: Need
    paths: tuple[str, ...]
    """Of HTTP, as regular expressions."""
    methods: frozenset[bytes] = frozenset({b"GET"})
    pool: Pool = ""
    """Where it runs; HTTP's event loop runs what has none, gRPC uses ``work`` for that. ``asks``: HTTP's event loop
    runs it as well, unless it runs code of the model."""
    while_stopping: bool = True
    """Whether it is still served when the server is going down."""

    def needs_at(self, path: str) -> Need:
        """What a client needs for one of ``paths``: one that names no model is about several."""
        return self.needs if "(?P<model>" in path else Need(self.needs.scope_for(""), self.needs.right)


_POST: Final = frozenset({b"POST"})
_BOTH: Final = frozenset({b"GET", b"POST"})
_NAMED: Final = "/models/(?P<model>[^/]+)"
_ONE_VERSION: Final = "(?:/versions/(?P<version>[0-9]+))?"
MODEL_PATH: Final = f"/v2{_NAMED}{_ONE_VERSION}"
_REPOSITORY: Final = "/v2/repository(?:/(?P<repository>[^/]+))?"
_STATISTICS: Final = ("/v2/models/stats", f"{MODEL_PATH}/stats")
_TRACES: Final = ("/v2/trace/setting", f"/v2{_NAMED}/trace/setting")
_SEES: Final = for_model(Right.METADATA)
_SEES_LISTED: Final = for_model(Right.METADATA, unnamed=Scope.LISTED)
_MANAGES: Final = for_model(Right.MANAGE)
_MANAGES_TRACES: Final = for_model(Right.MANAGE, unnamed=Scope.SERVER)
_MANAGES_ALL: Final = for_all(Right.MANAGE)


def _repository(name: str, method: Callable[[Operations, Call], Any], needs: Need, path: str, pool: Pool) -> Operation:
    return Operation(
        name, method, Api.MODEL_REPOSITORY, needs, (_REPOSITORY + path,), _POST, pool, while_stopping=pool != "waits"
    )


def _memory(kind: str, action: str, method: Callable[[Operations, Call], Any]) -> Operation:
    path = f"/v2/{kind.lower()}sharedmemory(?:/region/(?P<region>[^/]+))?/{action.lower()}"
    methods = frozenset({b"GET"}) if action == "Status" else _POST
    return Operation(f"{kind}SharedMemory{action}", method, Api.SHARED_MEMORY, _MANAGES_ALL, (path,), methods)


#: HTTP tries paths in this order.
OPERATIONS: Final = (
    Operation("ServerLive", Operations.live, Api.HEALTH, OPEN, ("/v2/health/live",)),
    Operation("ServerReady", Operations.ready, Api.HEALTH, OPEN, ("/v2/health/ready",)),
    Operation("ServerMetadata", Operations.metadata, Api.METADATA, KNOWN, ("/v2",)),
    Operation("ModelStatistics", Operations.statistics, Api.STATISTICS, _SEES_LISTED, _STATISTICS),
    Operation("ModelReady", Operations.model_ready, Api.HEALTH, _SEES, (f"{MODEL_PATH}/ready",), pool="asks"),
    Operation("ModelConfig", Operations.model_config, Api.MODEL_CONFIG, _SEES, (f"{MODEL_PATH}/config",)),
    Operation("ModelMetadata", Operations.model_metadata, Api.METADATA, _SEES, (MODEL_PATH,)),
    _repository("RepositoryIndex", Operations.index, listed(Right.METADATA), "/index", "work"),
    _repository("RepositoryModelLoad", Operations.load, _MANAGES, f"{_NAMED}{_ONE_VERSION}/load", "waits"),
    _repository("RepositoryModelUnload", Operations.unload, _MANAGES, f"{_NAMED}{_ONE_VERSION}/unload", "waits"),
    Operation("", Operations.report, Api.MODEL_REPOSITORY, _SEES, (f"/v2/repository{_NAMED}/report",)),
    Operation("", Operations.attestation, Api.METADATA, _SEES, (f"{MODEL_PATH}/attestation",), pool="work"),
    # In a thread: a change waits for its line in the audit log.
    Operation("LogSettings", Operations.log_settings, Api.LOGGING, _MANAGES_ALL, ("/v2/logging",), _BOTH, "work"),
    Operation("TraceSetting", Operations.trace_settings, Api.TRACE, _MANAGES_TRACES, _TRACES, _BOTH, "work"),
    _memory("System", "Status", Operations.regions),
    _memory("System", "Register", Operations.register_region),
    _memory("System", "Unregister", Operations.unregister_region),
    _memory("Cuda", "Status", Operations.cuda_regions),
    _memory("Cuda", "Register", Operations.register_cuda_region),
    _memory("Cuda", "Unregister", Operations.unregister_cuda_region),
)
