"""The methods of ``inference.GRPCInferenceService``: what gRPC reads and writes of each operation of the table.

Generated service code would carry the package of our messages in its path; the path must be Triton's.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import grpc

from repoagent.errors import InvalidArgumentError, RepoAgentError, UnavailableError, UnsupportedError
from repoagent_server.access import AccessError, Caller
from repoagent_server.codec.binary import Buffer
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.access import RPCS, CallAccess
from repoagent_server.grpc.infer import Context, InferCalls, receive
from repoagent_server.grpc.infer_stream import stream_infer
from repoagent_server.grpc.response import config_message, statistics_message, status_of
from repoagent_server.grpc.wire import LONG_MESSAGE, check_fields
from repoagent_server.handlers.headers import HeaderForwarding
from repoagent_server.handlers.inference import Inference, Mailbox, Served
from repoagent_server.handlers.operations import Call, LoadParameters, Operation, Operations, check_repository
from repoagent_server.handlers.settings import LOG_FILE_IS_FIXED, LOG_FORMATS, LogChanges, TraceChanges
from repoagent_server.shared.connections import InFlight
from repoagent_server.shared.pools import Pools

SERVICE: Final = "inference.GRPCInferenceService"
_INFER: Final = "ModelInfer"
_INFER_PATH: Final = f"/{SERVICE}/{_INFER}"
_STOPPING: Final = "Server not ready: it is stopping"

#: Every method but the stream: name -> its two messages.
METHODS: Final[Mapping[str, tuple[Any, Any]]] = {
    name: (getattr(pb, f"{name}Request"), getattr(pb, f"{name}Response"))
    for name in (_INFER, *(operation.name for operation in RPCS))
}

#: The parameter of loads and unloads that means one version; Triton has none.
_VERSION: Final = "version"

_Method = Callable[[Any, Context], Awaitable[Any]]


class GrpcService:
    """The methods over a core, found by their path. Belongs to one event loop."""

    def __init__(
        self,
        served: Served,
        loop: asyncio.AbstractEventLoop,
        pools: Pools,
        *,
        operations: Operations | None = None,
        forwarding: HeaderForwarding | None = None,
        in_flight: InFlight | None = None,
        join: Callable[[list[Buffer]], bytes] | None = b"".join,
    ) -> None:
        """Serve what is ``served``, on the thread of ``loop``.

        Args:
            served: What answers, and who may ask it for what.
            loop: On whose thread this is called, and the calls are.
            pools: Where methods run that take their time.
            operations: Answer all but inference; None makes those of the core.
            forwarding: Which metadata reach the model as parameters.
            in_flight: Counts the calls.
            join: What makes one message of the parts of an inference response; None leaves that to the transport.
        """
        allowed, regions, access = served.allow_load_parameters, served.regions, served.access
        self._operations = operations or Operations(served.core, allow_load_parameters=allowed, regions=regions)
        inference = Inference(served, Mailbox(loop), forwarding, protocol="grpc", route=_INFER_PATH)
        self._pools = pools
        self._in_flight = in_flight or InFlight()
        self.stopping = False
        """Set from any thread: from now on inference, load and unload are refused."""
        calls = self.calls = InferCalls(inference, self._in_flight, pools.long, served.request_log)
        self.access = None if access is None else CallAccess(access, SERVICE)
        """Who may do what; None without access control."""
        self._handlers = {f"/{SERVICE}/{operation.name}": self._unary(operation) for operation in RPCS}
        # These parse and write their messages by themselves.
        self._handlers[_INFER_PATH] = grpc.unary_unary_rpc_method_handler(self._refusing(calls.infer), receive, join)
        self._handlers[f"/{SERVICE}/ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._refusing(partial(stream_infer, calls))
        )

    def service(self, details: Any) -> Any:
        """As grpc's generic handlers: the handler of ``details.method``, None if there is none."""
        return self._handlers.get(details.method)

    def _refusing(self, method: _Method) -> _Method:
        """``method``, but not once the server is stopping."""

        async def refused_when_stopping(message: Any, context: Context) -> Any:
            if self.stopping:
                await context.abort(grpc.StatusCode.UNAVAILABLE, _STOPPING)
            return await method(message, context)

        return refused_when_stopping

    def _unary(self, operation: Operation) -> Any:
        """The handler of an operation, which runs on a thread."""
        path, pool = f"/{SERVICE}/{operation.name}", getattr(self._pools, operation.pool or "work")
        request, response = METHODS[operation.name]

        def parse(data: bytes | bytearray) -> Any:
            try:
                if len(data) >= LONG_MESSAGE:
                    check_fields(data, self.calls.inference.limits.request_parameters)
                return request.FromString(data)
            except RepoAgentError as error:
                return error  # raised here, it would be an error without its text

        async def run(message: Any, context: Context) -> Any:
            self._in_flight.started()
            try:
                if isinstance(message, RepoAgentError):
                    raise message
                caller = context.caller
                if self.access is not None:
                    caller = self.access.check(path, caller, _name_in(message))
                answer = partial(self._answer, operation, message, context, caller)
                return await asyncio.get_running_loop().run_in_executor(pool, answer)
            except RepoAgentError as error:
                if isinstance(error, AccessError) and self.access is not None:
                    self.access.report(error, path, address=context.address, request=context.request_id)
                await context.abort(*status_of(error))
            finally:
                self._in_flight.finished()

        return grpc.unary_unary_rpc_method_handler(run, parse, response.SerializeToString)

    def _answer(self, operation: Operation, message: Any, context: Context, caller: Caller | None) -> Any:
        """On a thread: the answer to ``message``."""
        stopping, name = self.stopping, operation.name
        if stopping and not operation.while_stopping:
            raise UnavailableError(_STOPPING)
        version, read = getattr(message, "version", ""), partial(_READ.get(name, _nothing), message)
        call = Call(caller, "grpc", context.request_id, context.address, _name_in(message), version, read)
        result = self._operations.run(operation, call)
        if name in _FLAGS:
            result = {_FLAGS[name]: result and not (stopping and name == "ServerReady")}
        write = _WRITE.get(name)
        return write(result) if write is not None else METHODS[name][1](**(result or {}))


def _name_in(message: Any) -> str:
    """The model, or the region of shared memory, that a message names; empty if it names none."""
    name: str = getattr(message, "model_name", "") or getattr(message, "name", "")
    return name


# What each operation reads of the rest of a message.


def _nothing(_: Any) -> None:
    """For an operation that needs only the name."""


def _wants_ready(message: pb.RepositoryIndexRequest) -> bool:
    check_repository(message.repository_name)
    return message.ready


def _load_parameters(message: pb.RepositoryModelLoadRequest) -> LoadParameters:
    check_repository(message.repository_name)
    parameters = LoadParameters()
    for name, parameter in message.parameters.items():
        if name != _VERSION:
            parameters.add(name, _load_value(name, parameter))
    parameters.version = _version(message.parameters)
    return parameters


def _load_value(name: str, parameter: pb.ModelRepositoryParameter) -> str | bytes:
    kind = parameter.WhichOneof("parameter_choice")
    if name != "config" and not name.startswith("file:"):
        raise InvalidArgumentError(f"unrecognized load parameter '{name}'.")
    wanted = "string_param" if name == "config" else "bytes_param"
    if kind != wanted:
        raise InvalidArgumentError(f"invalid value type for load parameter '{name}', expected {wanted}.")
    value: str | bytes = getattr(parameter, wanted)
    return value


def _unload_parameters(message: pb.RepositoryModelUnloadRequest) -> tuple[bool, str]:
    check_repository(message.repository_name)
    parameter = message.parameters.get("unload_dependents")
    if parameter is not None and parameter.WhichOneof("parameter_choice") != "bool_param":
        raise InvalidArgumentError("invalid value type for 'unload_dependents' parameter, expected bool_param.")
    return parameter is not None and parameter.bool_param, _version(message.parameters)


def _version(parameters: Mapping[str, pb.ModelRepositoryParameter]) -> str:
    """The only version that a load or an unload is about; "" for the whole model."""
    parameter = parameters.get(_VERSION)
    if parameter is None:
        return ""
    kind = parameter.WhichOneof("parameter_choice")
    if kind not in ("int64_param", "string_param") or not (version := str(getattr(parameter, kind))):
        raise InvalidArgumentError(f"invalid value for '{_VERSION}' parameter, expected the number of a version.")
    return version


_LISTS = frozenset({"trace_level", "trace_file"})


def _trace_changes(message: pb.TraceSettingRequest) -> TraceChanges:
    """The settings in ``message``; one without a value takes a change back.

    Raises:
        InvalidArgumentError: a number has several values.
    """
    changes: dict[str, str | Sequence[str] | None] = {}
    for name, setting in message.settings.items():
        values = list(setting.value)
        if name in _LISTS:
            changes[name] = values or None
        elif len(values) > 1:
            raise InvalidArgumentError(f"expect only 1 value for '{name}'")
        else:
            changes[name] = values[0] if values else None
    return changes


def _trace_message(settings: Mapping[str, str | list[str]]) -> pb.TraceSettingResponse:
    """The settings as a message."""
    message = pb.TraceSettingResponse()
    for name, value in settings.items():
        message.settings[name].value.extend([value] if isinstance(value, str) else value)
    return message


#: Setting -> the field that carries it, and what Triton calls its type.
_FIELDS: Final[Mapping[str, tuple[str, str]]] = {
    "log_file": ("string_param", "string"),
    "log_info": ("bool_param", "boolean"),
    "log_warning": ("bool_param", "boolean"),
    "log_error": ("bool_param", "boolean"),
    "log_verbose_level": ("uint32_param", "int32"),
    "log_format": ("string_param", "string"),
}


def _log_changes(message: pb.LogSettingsRequest) -> LogChanges:
    """What ``message`` asks for, checked in Triton's order; names that are not known ask for nothing.

    Raises:
        InvalidArgumentError: a value has the wrong type, or the format is not known.
        UnsupportedError: the file of the log is to be another one.
    """
    settings = message.settings
    if "log_file" in settings:
        raise UnsupportedError(LOG_FILE_IS_FIXED)
    values = {name: _value(name, settings[name]) for name in _FIELDS if name in settings}
    log_format = values.get("log_format")
    if log_format is not None and log_format not in LOG_FORMATS:
        raise InvalidArgumentError(f"invalid argument for log_format, got: {log_format}")
    return LogChanges(
        info=values.get("log_info"),
        warning=values.get("log_warning"),
        error=values.get("log_error"),
        verbose_level=values.get("log_verbose_level"),
        format=log_format,
    )


def _value(name: str, value: pb.LogSettingsRequest.SettingValue) -> Any:
    field, kind = _FIELDS[name]
    if value.WhichOneof("parameter_choice") != field:
        raise InvalidArgumentError(f"expect {kind} for '{name}'")
    return getattr(value, field)


def _log_message(settings: Mapping[str, Any]) -> pb.LogSettingsResponse:
    """The settings as a message."""
    message = pb.LogSettingsResponse()
    for name, value in settings.items():
        setattr(message.settings[name], _FIELDS[name][0], value)
    return message


def _index_message(entries: list[dict[str, Any]]) -> pb.RepositoryIndexResponse:
    """The protocol has no field for a namespace, nor for a home."""
    message = pb.RepositoryIndexResponse.ModelIndex
    known = message.DESCRIPTOR.fields_by_name
    shown = [{name: value for name, value in entry.items() if name in known} for entry in entries]
    return pb.RepositoryIndexResponse(models=[message(**entry) for entry in shown])


def _regions_message(regions: list[dict[str, Any]]) -> pb.SystemSharedMemoryStatusResponse:
    status = pb.SystemSharedMemoryStatusResponse.RegionStatus
    return pb.SystemSharedMemoryStatusResponse(regions={region["name"]: status(**region) for region in regions})


_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    "RepositoryIndex": _wants_ready,
    "RepositoryModelLoad": _load_parameters,
    "RepositoryModelUnload": _unload_parameters,
    "LogSettings": _log_changes,
    "TraceSetting": _trace_changes,
    "SystemSharedMemoryRegister": lambda message: (message.key, message.offset, message.byte_size),
}
_FLAGS: Final = {"ServerLive": "live", "ServerReady": "ready", "ModelReady": "ready"}
"""The answers with one field."""
_WRITE: Final[Mapping[str, Callable[[Any], Any]]] = {
    "ModelConfig": config_message,
    "ModelStatistics": statistics_message,
    "RepositoryIndex": _index_message,
    "LogSettings": _log_message,
    "TraceSetting": _trace_message,
    "SystemSharedMemoryStatus": _regions_message,
}
"""The others have the names of the result as fields."""
