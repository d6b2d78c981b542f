"""The routes of KServe v2 and of Triton's extensions: what HTTP reads and writes of each operation of the table."""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from repoagent.errors import InternalError, InvalidArgumentError, UnavailableError, UnsupportedError
from repoagent.limits import DEFAULT_LIMITS
from repoagent_server.access import Right
from repoagent_server.access.rights import for_model
from repoagent_server.codec.fields import MISSING, as_bool, as_string, as_unsigned, complaint, find, members
from repoagent_server.codec.json_text import loads, too_deep
from repoagent_server.codec.long_json import LONG_JSON, Frame, read_long
from repoagent_server.handlers.headers import Api
from repoagent_server.handlers.operations import (
    MODEL_PATH,
    OPERATIONS,
    Call,
    LoadParameters,
    Operation,
    Operations,
    check_repository,
)
from repoagent_server.handlers.settings import LOG_FILE_IS_FIXED, LOG_FORMATS, LogChanges, TraceChanges
from repoagent_server.http.messages import JSON, Exchange, Request, Response, error_response, json_response
from repoagent_server.http.service import Deferred, Params, Route

_NUMBERS: Final = ("trace_rate", "trace_count", "log_frequency")
_BASE64_PIECE: Final = 1 << 20
_CUDA_HANDLE_SIZE: Final = 64
_Value = TypeVar("_Value")


class Generate(Protocol):
    """What answers the two routes of the generate extension, and the one of tables."""

    def once(self, request: Request, params: Params, exchange: Exchange) -> None: ...

    def stream(self, request: Request, params: Params, exchange: Exchange) -> None: ...

    def table(self, request: Request, params: Params, exchange: Exchange) -> None: ...


def api_routes(operations: Operations, infer: Deferred, generate: Generate) -> list[Route]:
    """All routes of the API, the busiest first."""
    needs = for_model(Right.INFER)
    infers = partial(Route, methods=frozenset({b"POST"}), while_stopping=False, api=Api.INFERENCE, needs=needs)
    return [
        infers(f"{MODEL_PATH}/infer", deferred=infer),
        infers(f"{MODEL_PATH}/generate", deferred=generate.once),
        infers(f"{MODEL_PATH}/generate_stream", deferred=generate.stream),
        infers(f"{MODEL_PATH}/invocations", deferred=generate.table),
        *(_route(operation, path, operations) for operation in OPERATIONS for path in operation.paths),
    ]


def _route(operation: Operation, path: str, operations: Operations) -> Route:
    read, write = _READ.get(operation.name, _nothing), _WRITE.get(operation.name, _written)

    def answer(request: Request, params: Params) -> Response:
        name, version = params.get("model") or params.get("region", ""), params.get("version", "")
        rest = partial(read, request, params)
        call = Call(request.caller, "http", request.id, request.address, name, version, rest)
        return write(operations.run(operation, call), request, params)

    return Route(
        path,
        operation.methods,
        answer,
        pool=operation.pool,
        asks=partial(_asks, operations) if operation.pool == "asks" else None,
        while_stopping=operation.while_stopping,
        needs=operation.needs_at(path),
        api=operation.api,
    )


def _asks(operations: Operations, params: Params) -> bool:
    return operations.asks_model(params["model"], params["version"])


def _nothing(_: Request, __: Params) -> None:
    """For an operation that needs only the path."""


def _written(result: object, _: Request, __: Params) -> Response:
    return Response() if result is None else json_response(result)


def _health(word: str) -> Callable[[bool, Request, Params], Response]:
    def write(good: bool, request: Request, _: Params) -> Response:
        return _status({word: good}, good, request)

    return write


def _model_health(ready: bool, request: Request, params: Params) -> Response:
    if not ready:
        return error_response("Model version not ready", 400)
    return _status({"name": params["model"], "ready": True}, True, request)


def _status(document: dict[str, Any], good: bool, request: Request) -> Response:
    """A status without a body, as Triton's, which shell probes rely on.

    With one for who asks for JSON, or takes compressed answers: a library, not a probe. KServe's client, which reads
    the body, does not send what it accepts.
    """
    wants_json = JSON in (request.header(b"accept") or b"").lower() or b"gzip" in (request.frame.accepts or b"")
    status = 200 if good else 400
    return json_response(document, status) if wants_json else Response(status)


# What each operation reads of the rest of a request.


def _wants_ready(request: Request, _: Params) -> bool:
    ready = find(optional_document(request), "ready")
    if ready is not MISSING and type(ready) is not bool:
        raise InvalidArgumentError(f"Unable to parse 'ready': {complaint('boolean')}")
    return ready is True


def _load_parameters(request: Request, params: Params) -> LoadParameters:
    check_repository(params["repository"])
    parameters = LoadParameters(version=params["version"])
    given = find(optional_document(request), "parameters")
    if given is not MISSING:
        for name, value in members(given).items():
            text = as_string(value)
            parameters.add(name, _decode(name, text) if name.startswith("file:") else text)
    return parameters


def _decode(name: str, text: str) -> bytes:
    try:  # piece by piece: others have a turn in between
        cuts = range(0, len(text), _BASE64_PIECE)
        pieces = [binascii.a2b_base64(text[start : start + _BASE64_PIECE], strict_mode=True) for start in cuts]
        if any(len(piece) != _BASE64_PIECE // 4 * 3 for piece in pieces[:-1]):
            raise binascii.Error("Excess data after padding")
        return b"".join(pieces)
    except binascii.Error as error:
        raise InvalidArgumentError(f"the contents of '{name}' are not valid base64: {error}") from None


def _unload_parameters(request: Request, params: Params) -> tuple[bool, str]:
    """Triton unloads even if the body makes no sense, so that a client can always get rid of a model."""
    check_repository(params["repository"])
    try:
        wanted = find(find(optional_document(request), "parameters"), "unload_dependents")
        return wanted is not MISSING and as_bool(wanted), params["version"]
    except (InternalError, InvalidArgumentError):
        return False, params["version"]


def _trace_changes(request: Request, _: Params) -> TraceChanges:
    """The settings that are known: null takes a change back, and GET changes nothing.

    Raises:
        InternalError: a value has the wrong type (Triton's code).
    """
    if request.method != b"POST":
        return {}
    given = document(request)
    if find(given, "trace_file") is not MISSING:
        return {"trace_file": None}
    changes: dict[str, str | Sequence[str] | None] = {}
    levels = find(given, "trace_level")
    if levels is not MISSING:
        changes["trace_level"] = None if levels is None else _texts(levels)
    for name in _NUMBERS:
        value = find(given, name)
        if value is not MISSING:
            changes[name] = None if value is None else as_string(value)
    return changes


def _texts(value: object) -> list[str]:
    if type(value) is not list:
        raise InternalError(complaint("array"))
    return [as_string(item) for item in value]


def _log_changes(request: Request, _: Params) -> LogChanges:
    """What POST asks for, checked in Triton's order; null and names that are not known ask for nothing.

    Raises:
        InternalError: a value has the wrong type (Triton's code).
        UnavailableError: the format is not known (Triton's code).
        UnsupportedError: the file of the log is to be another one.
    """
    if request.method != b"POST":
        return LogChanges()
    given = document(request)
    if find(given, "log_file") not in (MISSING, None):
        raise UnsupportedError(LOG_FILE_IS_FIXED)
    return LogChanges(
        info=_optional(given, "log_info", as_bool),
        warning=_optional(given, "log_warning", as_bool),
        error=_optional(given, "log_error", as_bool),
        verbose_level=_optional(given, "log_verbose_level", as_unsigned),
        format=_optional(given, "log_format", _format),
    )


def _optional(document: object, name: str, read: Callable[[object], _Value]) -> _Value | None:
    value: Any = find(document, name)
    return None if value is MISSING or value is None else read(value)


def _format(value: object) -> str:
    name = as_string(value)
    if name not in LOG_FORMATS:
        raise UnavailableError(f"invalid argument for --log_format, got: {name}")
    return name


def _region(request: Request, params: Params) -> tuple[str, int, int]:
    """Key, offset and size."""
    given = _registered(request, params, "system")
    key = as_string(_required(given, "key"))
    offset = find(given, "offset")
    offset = 0 if offset is MISSING else as_unsigned(offset)
    return key, offset, as_unsigned(_required(given, "byte_size"))


def _cuda_region(request: Request, params: Params) -> None:
    """Nothing is of use, as there is no GPU; it is checked so that clients get Triton's answers."""
    given = _registered(request, params, "cuda")
    handle = as_string(_member(_required(given, "raw_handle"), "b64"))
    for number in ("byte_size", "device_id"):
        as_unsigned(_member(given, number))
    _check_handle(handle)


def _registered(request: Request, params: Params, kind: str) -> Any:
    if not params["region"]:
        raise InvalidArgumentError(f"'region name' is necessary to register {kind} shared memory region")
    return document(request)


def _required(document: object, name: str) -> Any:
    found = find(document, name)
    if found is MISSING:
        raise InvalidArgumentError(f"Shared memory register request has no '{name}' field")
    return found


def _member(document: object, name: str) -> Any:
    found = find(document, name)
    if found is MISSING:
        raise InternalError(f"attempt to access non-existing object member '{name}'")
    return found


def _check_handle(text: str) -> None:
    try:
        size = len(base64.b64decode(text))
    except binascii.Error:
        size = 0
    if size != _CUDA_HANDLE_SIZE:
        raise InvalidArgumentError("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")


_READ: Final[Mapping[str, Callable[[Request, Params], Any]]] = {
    "RepositoryIndex": _wants_ready,
    "RepositoryModelLoad": _load_parameters,
    "RepositoryModelUnload": _unload_parameters,
    "LogSettings": _log_changes,
    "TraceSetting": _trace_changes,
    "SystemSharedMemoryRegister": _region,
    "CudaSharedMemoryRegister": _cuda_region,
}
_WRITE: Final[Mapping[str, Callable[[Any, Request, Params], Response]]] = {
    "ServerLive": _health("live"),
    "ServerReady": _health("ready"),
    "ModelReady": _model_health,
}
"""The others answer with JSON, or without a body."""


_FRAME: Final = Frame(DEFAULT_LIMITS.request_parameters, DEFAULT_LIMITS.json_depth)


def document(request: Request) -> Any:
    """The document, read piece by piece if it is long.

    Raises:
        InternalError: it does not parse.
        InvalidArgumentError: it is nested too deeply, or has too many members.
    """
    if len(request.body) >= LONG_JSON:
        return read_long(request.body, _FRAME)
    read = loads(request.body)
    check_depth(read)
    return read


def optional_document(request: Request) -> Any:
    """The same; MISSING if there is no body, which means that all is as by default."""
    return document(request) if len(request.body) else MISSING


def check_depth(value: object) -> None:
    """Raise ``InvalidArgumentError`` if a document that was read is nested too deeply."""
    level = [value]
    for _ in range(_FRAME.depth + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise too_deep(_FRAME.depth)
