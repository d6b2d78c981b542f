"""The methods of ``inference.GRPCInferenceService``, registered by hand.

Generated service code would carry the package of our messages in its path; the path must be Triton's.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import grpc

from repoagent.audit import Actor, acting_as
from repoagent.errors import InvalidArgumentError, RepoAgentError, UnavailableError, UnsupportedError
from repoagent_server.access import AccessError, Caller
from repoagent_server.codec.binary import Buffer
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.access import CallAccess, acting_client
from repoagent_server.grpc.infer import Context, InferCalls, receive
from repoagent_server.grpc.infer_stream import InferStreams
from repoagent_server.grpc.response import code_for, config_message, details, statistics_message
from repoagent_server.grpc.settings import log_changes, log_message, trace_changes, trace_message
from repoagent_server.grpc.shared_memory import status_message
from repoagent_server.grpc.wire import LONG_MESSAGE, check_fields
from repoagent_server.handlers.handlers import Handlers
from repoagent_server.handlers.repository import LoadParameters
from repoagent_server.shared.client_text import client_text
from repoagent_server.shared.in_flight import InFlight
from repoagent_server.shared.pools import Pools

__all__ = ["METHODS", "SERVICE", "GrpcService"]

SERVICE: Final = "inference.GRPCInferenceService"

#: Every method but the stream: name -> its two messages.
METHODS: Final[Mapping[str, tuple[Any, Any]]] = {
    name: (getattr(pb, f"{name}Request"), getattr(pb, f"{name}Response"))
    for name in (
        "ServerLive",
        "ServerReady",
        "ModelReady",
        "ServerMetadata",
        "ModelMetadata",
        "ModelInfer",
        "ModelConfig",
        "ModelStatistics",
        "RepositoryIndex",
        "RepositoryModelLoad",
        "RepositoryModelUnload",
        "SystemSharedMemoryStatus",
        "SystemSharedMemoryRegister",
        "SystemSharedMemoryUnregister",
        "CudaSharedMemoryStatus",
        "CudaSharedMemoryRegister",
        "CudaSharedMemoryUnregister",
        "TraceSetting",
        "LogSettings",
    )
}

#: The parameter of loads and unloads that means one version; Triton has none.
_VERSION: Final = "version"

#: Those that wait for agents, backends and requests.
_WAITING: Final = frozenset({"RepositoryModelLoad", "RepositoryModelUnload"})

#: Those whose answer depends on who asks, beside the right for the model that the message names.
_KNOWING: Final = frozenset({"ModelStatistics", "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"})

Message = TypeVar("Message")
_Call = Callable[[Any, Context], Awaitable[Any]]


class GrpcService:
    """Finds the handler of a method by its path."""

    def __init__(
        self,
        handlers: Handlers,
        calls: InferCalls,
        streams: InferStreams,
        pools: Pools,
        in_flight: InFlight,
        join: Callable[[list[Buffer]], bytes] | None = b"".join,
        access: CallAccess | None = None,
    ) -> None:
        """Know what the methods need.

        Args:
            handlers: What answers all but inference.
            calls: Answers inference.
            streams: Answers streams of it.
            pools: Where methods run that take their time.
            in_flight: Counts the calls.
            join: What makes one message of the parts of an inference response; None leaves that to the transport.
            access: Who may do what; None lets everybody do everything.
        """
        self._server = handlers.server
        self._repository = handlers.repository
        self._log = handlers.log
        self._trace = handlers.trace
        self._pools = pools
        self._in_flight = in_flight
        self._regions = handlers.regions
        self.stopping = False
        """Set from any thread: from now on inference, load and unload are refused."""
        self._calls = calls
        self._join = join
        self._access = access
        self._handlers = {f"/{SERVICE}/{name}": self._unary(name) for name in METHODS}
        self._handlers[f"/{SERVICE}/ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._refusing(streams.stream)  # it parses and writes its messages by itself
        )

    def service(self, details: Any) -> Any:
        """As grpc's generic handlers: the handler of ``details.method``, None if there is none."""
        return self._handlers.get(details.method)

    def _unary(self, name: str) -> Any:
        request, response = METHODS[name]
        if name == "ModelInfer":  # it parses large messages by itself, and answers with the parts of one
            return grpc.unary_unary_rpc_method_handler(self._refusing(self._calls.infer), receive, self._join)

        def parse(data: bytes | bytearray) -> Any:
            try:
                if len(data) >= LONG_MESSAGE:
                    check_fields(data, self._calls.limits.request_parameters)
                return request.FromString(data)
            except RepoAgentError as error:
                return error  # raised here, it would be an error without its text

        return grpc.unary_unary_rpc_method_handler(self._blocking(name), parse, response.SerializeToString)

    def _refusing(self, call: _Call) -> _Call:
        """``call``, but not once the server is stopping."""

        async def refused_when_stopping(message: Any, context: Context) -> Any:
            if self.stopping:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "Server not ready: it is stopping")
            return await call(message, context)

        return refused_when_stopping

    def _blocking(self, name: str) -> _Call:
        """A method that may take its time, run on a thread."""
        method, path, knows = getattr(self, f"_{_snake(name)}"), f"/{SERVICE}/{name}", name in _KNOWING
        pools = self._pools
        pool = pools.waits if name in _WAITING else pools.asks if name == "ModelReady" else pools.work

        async def run(message: Any, context: Context) -> Any:
            self._in_flight.started()
            try:
                if isinstance(message, RepoAgentError):
                    raise message
                caller = context.caller
                if self._access is not None:
                    caller = self._access.check(path, caller, _model_of(message))
                call = partial(method, message, caller) if knows else partial(method, message)
                actor = acting_client(context, caller)
                return await asyncio.get_running_loop().run_in_executor(pool, _as, actor, call)
            except RepoAgentError as error:
                if isinstance(error, AccessError) and self._access is not None:
                    self._access.report(error, path, address=context.address, request=context.request_id)
                await context.abort(code_for(error), details(client_text(error)))
            finally:
                self._in_flight.finished()

        return run

    def _server_live(self, _: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=self._server.live())

    def _server_ready(self, _: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=not self.stopping and self._server.ready())

    def _model_ready(self, message: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        return pb.ModelReadyResponse(ready=self._server.model_ready(message.name, message.version))

    def _server_metadata(self, _: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(**self._server.metadata())

    def _model_metadata(self, message: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        return pb.ModelMetadataResponse(**self._server.model_metadata(message.name, message.version))

    def _model_config(self, message: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        return config_message(self._server.model_config(message.name, message.version))

    def _model_statistics(
        self, message: pb.ModelStatisticsRequest, caller: Caller | None
    ) -> pb.ModelStatisticsResponse:
        return statistics_message(self._server.statistics(message.name, message.version, caller))

    def _repository_index(
        self, message: pb.RepositoryIndexRequest, caller: Caller | None
    ) -> pb.RepositoryIndexResponse:
        _no_repository_name(message.repository_name)
        entries = self._repository.index(message.ready, caller)
        return pb.RepositoryIndexResponse(models=[_model_index(entry) for entry in entries])

    def _repository_model_load(
        self, message: pb.RepositoryModelLoadRequest, caller: Caller | None
    ) -> pb.RepositoryModelLoadResponse:
        self._check_running()
        _no_repository_name(message.repository_name)
        parameters = LoadParameters()
        for name, parameter in message.parameters.items():
            if name != _VERSION:
                parameters.add(name, _load_value(name, parameter))
        self._repository.load(message.model_name, parameters, caller, version=_version(message.parameters))
        return pb.RepositoryModelLoadResponse()

    def _repository_model_unload(
        self, message: pb.RepositoryModelUnloadRequest, caller: Caller | None
    ) -> pb.RepositoryModelUnloadResponse:
        self._check_running()
        _no_repository_name(message.repository_name)
        dependents, version = _unload_dependents(message), _version(message.parameters)
        self._repository.unload(message.model_name, unload_dependents=dependents, caller=caller, version=version)
        return pb.RepositoryModelUnloadResponse()

    def _system_shared_memory_status(
        self, message: pb.SystemSharedMemoryStatusRequest
    ) -> pb.SystemSharedMemoryStatusResponse:
        return status_message(self._regions.status(message.name))

    def _system_shared_memory_register(
        self, message: pb.SystemSharedMemoryRegisterRequest
    ) -> pb.SystemSharedMemoryRegisterResponse:
        self._regions.register(message.name, message.key, message.offset, message.byte_size)
        return pb.SystemSharedMemoryRegisterResponse()

    def _system_shared_memory_unregister(
        self, message: pb.SystemSharedMemoryUnregisterRequest
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        self._regions.unregister(message.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    def _cuda_shared_memory_status(
        self, message: pb.CudaSharedMemoryStatusRequest
    ) -> pb.CudaSharedMemoryStatusResponse:
        self._regions.check_cuda(message.name)
        return pb.CudaSharedMemoryStatusResponse()

    def _cuda_shared_memory_register(self, message: pb.CudaSharedMemoryRegisterRequest) -> None:
        self._regions.register_cuda(message.name)

    def _cuda_shared_memory_unregister(
        self, _: pb.CudaSharedMemoryUnregisterRequest
    ) -> pb.CudaSharedMemoryUnregisterResponse:
        # Clients call this without having registered anything; it succeeds in Triton too.
        return pb.CudaSharedMemoryUnregisterResponse()

    def _trace_setting(self, message: pb.TraceSettingRequest) -> pb.TraceSettingResponse:
        self._trace.check_model(message.model_name)
        self._trace.update(message.model_name, trace_changes(message))
        return trace_message(self._trace.settings(message.model_name))

    def _log_settings(self, message: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
        self._log.update(log_changes(message))
        return log_message(self._log.settings())

    def _check_running(self) -> None:
        if self.stopping:
            raise UnavailableError("Server not ready: it is stopping")


def _model_of(message: Any) -> str:
    """The model that a message names, in one of two fields; empty if it names none. A region is not a model, and the
    methods that have one need a right for all models."""
    name: str = getattr(message, "model_name", "") or getattr(message, "name", "")
    return name


def _as(actor: Actor, call: Callable[[], Any]) -> Any:
    with acting_as(actor):
        return call()


def _snake(name: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name).lstrip("_")


def _no_repository_name(name: str) -> None:
    if name:
        raise UnsupportedError("'repository_name' specification is not supported")


def _unload_dependents(message: pb.RepositoryModelUnloadRequest) -> bool:
    parameter = message.parameters.get("unload_dependents")
    if parameter is None:
        return False
    if parameter.WhichOneof("parameter_choice") != "bool_param":
        raise InvalidArgumentError("invalid value type for 'unload_dependents' parameter, expected bool_param.")
    return bool(parameter.bool_param)


def _version(parameters: Mapping[str, pb.ModelRepositoryParameter]) -> str:
    """The only version that a load or an unload is about; "" for the whole model."""
    parameter = parameters.get(_VERSION)
    if parameter is None:
        return ""
    kind = parameter.WhichOneof("parameter_choice")
    if kind not in ("int64_param", "string_param") or not (version := str(getattr(parameter, kind))):
        raise InvalidArgumentError(f"invalid value for '{_VERSION}' parameter, expected the number of a version.")
    return version


def _load_value(name: str, parameter: pb.ModelRepositoryParameter) -> str | bytes:
    kind = parameter.WhichOneof("parameter_choice")
    if name != "config" and not name.startswith("file:"):
        raise InvalidArgumentError(f"unrecognized load parameter '{name}'.")
    wanted = "string_param" if name == "config" else "bytes_param"
    if kind != wanted:
        raise InvalidArgumentError(f"invalid value type for load parameter '{name}', expected {wanted}.")
    value: str | bytes = getattr(parameter, wanted)
    return value


def _model_index(entry: Mapping[str, str]) -> pb.RepositoryIndexResponse.ModelIndex:
    """One line of the index. The protocol has no field for a namespace."""
    fields = {name: value for name, value in entry.items() if name != "namespace"}
    return pb.RepositoryIndexResponse.ModelIndex(**fields)
