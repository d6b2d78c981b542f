"""The paths of KServe v2 and of Triton's extensions, and what each means to the handlers."""

import binascii
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError, UnavailableError, UnsupportedError
from repoagent_server.access import Right
from repoagent_server.access.rights import KNOWN, OPEN, for_all, for_model, listed
from repoagent_server.codec.fields import MISSING, as_bool, as_string, as_unsigned, complaint, find, members
from repoagent_server.handlers.handlers import Handlers
from repoagent_server.handlers.log_settings import LOG_FILE_IS_FIXED, LOG_FORMATS, LogChanges, LogSettingsHandler
from repoagent_server.handlers.repository import LoadParameters, RepositoryHandler
from repoagent_server.handlers.restrictions import Api
from repoagent_server.handlers.server import ServerHandler
from repoagent_server.handlers.trace_settings import TraceChanges, TraceSettingsHandler
from repoagent_server.http.access import acting
from repoagent_server.http.json_body import document, optional_document
from repoagent_server.http.messages import JSON, Exchange, Request, Response, error_response, json_response
from repoagent_server.http.router import Deferred, Params, Route
from repoagent_server.http.shared_memory import shared_memory_routes

__all__ = ["Generate", "api_routes", "log_route", "trace_routes"]


_METHODS: Final = frozenset({b"GET", b"POST"})
_NUMBERS: Final = ("trace_rate", "trace_count", "log_frequency")


def trace_routes(handler: TraceSettingsHandler) -> list[Route]:
    """GET shows the settings, POST changes some of them and shows all."""

    def answer(request: Request, params: Params) -> Response:
        model = params.get("model", "")
        if request.method == b"POST":
            handler.check_model(model)
            with acting(request):
                handler.update(model, _trace_changes(document(request)))
        return json_response(handler.settings(model))

    setting = partial(Route, methods=_METHODS, blocking=answer, api=Api.TRACE)
    return [
        setting("/v2/trace/setting", needs=for_all(Right.MANAGE)),
        setting("/v2/models/(?P<model>[^/]+)/trace/setting", needs=for_model(Right.MANAGE)),
    ]


def _trace_changes(document: object) -> TraceChanges:
    """The settings in ``document`` that are known; null takes a change back.

    Raises:
        InternalError: a value has the wrong type (Triton's code).
    """
    if find(document, "trace_file") is not MISSING:
        return {"trace_file": None}
    changes: dict[str, str | Sequence[str] | None] = {}
    levels = find(document, "trace_level")
    if levels is not MISSING:
        changes["trace_level"] = None if levels is None else _texts(levels)
    for name in _NUMBERS:
        value = find(document, name)
        if value is not MISSING:
            changes[name] = None if value is None else as_string(value)
    return changes


def _texts(value: object) -> list[str]:
    if type(value) is not list:
        raise InternalError(complaint("array"))
    return [as_string(item) for item in value]


_Value = TypeVar("_Value")


def log_route(handler: LogSettingsHandler) -> Route:
    """GET shows the settings, POST changes some of them and shows all."""

    def answer(request: Request, _: Params) -> Response:
        if request.method == b"POST":
            with acting(request):
                handler.update(_log_changes(document(request)))
        return json_response(handler.settings())

    # In a thread: a change waits for its line in the audit log.
    return Route("/v2/logging", _METHODS, blocking=answer, api=Api.LOGGING, needs=for_all(Right.MANAGE))


def _log_changes(document: object) -> LogChanges:
    """What ``document`` asks for, checked in Triton's order; null and names that are not known ask for nothing.

    Raises:
        InternalError: a value has the wrong type (Triton's code).
        UnavailableError: the format is not known (Triton's code).
        UnsupportedError: the file of the log is to be another one.
    """
    if find(document, "log_file") not in (MISSING, None):
        raise UnsupportedError(LOG_FILE_IS_FIXED)
    return LogChanges(
        info=_optional(document, "log_info", as_bool),
        warning=_optional(document, "log_warning", as_bool),
        error=_optional(document, "log_error", as_bool),
        verbose_level=_optional(document, "log_verbose_level", as_unsigned),
        format=_optional(document, "log_format", _format),
    )


def _optional(document: object, name: str, read: Callable[[object], _Value]) -> _Value | None:
    value: Any = find(document, name)
    return None if value is MISSING or value is None else read(value)


def _format(value: object) -> str:
    name = as_string(value)
    if name not in LOG_FORMATS:
        raise UnavailableError(f"invalid argument for --log_format, got: {name}")
    return name


_GET: Final = frozenset({b"GET"})
_POST: Final = frozenset({b"POST"})
_MODEL: Final = "/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[0-9]+))?"
_BASE64_PIECE: Final = 1 << 20
_REPOSITORY: Final = "/v2/repository(?:/(?P<repository>[^/]+))?"


class Generate(Protocol):
    """What answers the two routes of the generate extension."""

    def once(self, request: Request, params: Params, exchange: Exchange) -> None: ...

    def stream(self, request: Request, params: Params, exchange: Exchange) -> None: ...


def api_routes(handlers: Handlers, infer: Deferred, generate: Generate) -> list[Route]:
    """All routes of the API, the busiest first."""
    ask = _ServerRoutes(handlers.server)
    needs = for_model(Right.INFER)
    infers = partial(Route, methods=_POST, while_stopping=False, api=Api.INFERENCE, needs=needs)
    asks = partial(Route, methods=_GET, needs=for_model(Right.METADATA))
    return [
        infers(f"{_MODEL}/infer", deferred=infer),
        infers(f"{_MODEL}/generate", deferred=generate.once),
        infers(f"{_MODEL}/generate_stream", deferred=generate.stream),
        Route("/v2/health/live", _GET, inline=ask.live, api=Api.HEALTH, needs=OPEN),
        Route("/v2/health/ready", _GET, inline=ask.ready, api=Api.HEALTH, needs=OPEN),
        Route("/v2", _GET, inline=ask.metadata, api=Api.METADATA, needs=KNOWN),
        Route("/v2/models/stats", _GET, inline=ask.statistics, api=Api.STATISTICS, needs=listed(Right.METADATA)),
        asks(f"{_MODEL}/ready", inline=ask.model_ready, asking=ask.asks_model, api=Api.HEALTH),
        asks(f"{_MODEL}/config", inline=ask.model_config, api=Api.MODEL_CONFIG),
        asks(f"{_MODEL}/stats", inline=ask.statistics, api=Api.STATISTICS),
        asks(_MODEL, inline=ask.model_metadata, api=Api.METADATA),
        *_repository_routes(handlers.repository),
        log_route(handlers.log),
        *trace_routes(handlers.trace),
        *shared_memory_routes(handlers.regions),
    ]


def _repository_routes(handler: RepositoryHandler) -> list[Route]:
    keep = _RepositoryRoutes(handler)
    api = Api.MODEL_REPOSITORY
    model = "models/(?P<model>[^/]+)"
    version = f"{model}(?:/versions/(?P<version>[0-9]+))?"
    manages = partial(Route, methods=_POST, while_stopping=False, api=api, needs=for_model(Right.MANAGE))
    return [
        Route(f"{_REPOSITORY}/index", _POST, blocking=keep.index, api=api, needs=listed(Right.METADATA)),
        manages(f"{_REPOSITORY}/{version}/load", waiting=keep.load),
        manages(f"{_REPOSITORY}/{version}/unload", waiting=keep.unload),
        Route(f"/v2/repository/{model}/report", _GET, inline=keep.report, api=api, needs=for_model(Right.METADATA)),
    ]


class _ServerRoutes:
    """Health, metadata, configuration, statistics."""

    def __init__(self, server: ServerHandler) -> None:
        self._server = server

    def live(self, request: Request, __: Params) -> Response:
        live = self._server.live()
        return _health(request, {"live": live}, live)

    def ready(self, request: Request, __: Params) -> Response:
        ready = self._server.ready()
        return _health(request, {"ready": ready}, ready)

    def metadata(self, _: Request, __: Params) -> Response:
        return json_response(self._server.metadata())

    def model_ready(self, request: Request, params: Params) -> Response:
        model = params["model"]
        if not self._server.model_ready(model, params["version"]):
            return error_response("Model version not ready", 400)
        return _health(request, {"name": model, "ready": True}, True)

    def asks_model(self, params: Params) -> bool:
        try:
            return self._server.asks_model(params["model"], params["version"])
        except RepoAgentError:
            return False  # The answer says what is wrong.

    def model_metadata(self, _: Request, params: Params) -> Response:
        return json_response(self._server.model_metadata(params["model"], params["version"]))

    def model_config(self, _: Request, params: Params) -> Response:
        return json_response(self._server.model_config(params["model"], params["version"]))

    def statistics(self, request: Request, params: Params) -> Response:
        model, version = params.get("model", ""), params.get("version", "")
        return json_response(self._server.statistics(model, version, request.caller))


def _health(request: Request, document: dict[str, Any], good: bool) -> Response:
    """A status without a body, as Triton's, which shell probes rely on.

    With one for who asks for JSON, or takes compressed answers: a library, not a probe. KServe's client, which reads
    the body, does not say what it accepts.
    """
    wants_json = JSON in (request.header(b"accept") or b"").lower() or b"gzip" in (request.frame.accepts or b"")
    status = 200 if good else 400
    return json_response(document, status) if wants_json else Response(status)


class _RepositoryRoutes:
    """Index, load, unload, report."""

    def __init__(self, repository: RepositoryHandler) -> None:
        self._repository = repository

    def index(self, request: Request, _: Params) -> Response:
        ready = find(optional_document(request), "ready")
        if ready is not MISSING and type(ready) is not bool:
            raise InvalidArgumentError(f"Unable to parse 'ready': {complaint('boolean')}")
        return json_response(self._repository.index(ready is True, request.caller))

    def load(self, request: Request, params: Params) -> Response:
        _refuse_repository(params)
        with acting(request):
            parameters, version = _load_parameters(optional_document(request)), params["version"]
            self._repository.load(params["model"], parameters, request.caller, version=version)
        return Response()

    def unload(self, request: Request, params: Params) -> Response:
        _refuse_repository(params)
        dependents = _unload_dependents(request)
        caller, version = request.caller, params["version"]
        with acting(request):
            self._repository.unload(params["model"], unload_dependents=dependents, caller=caller, version=version)
        return Response()

    def report(self, _: Request, params: Params) -> Response:
        return json_response(self._repository.report(params["model"]))


def _refuse_repository(params: Params) -> None:
    if params["repository"]:
        raise UnsupportedError("'repository_name' specification is not supported")


def _load_parameters(document: object) -> LoadParameters:
    parameters = LoadParameters()
    given = find(document, "parameters")
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


def _unload_dependents(request: Request) -> bool:
    """Triton unloads even if the body makes no sense, so that a client can always get rid of a model."""
    try:
        wanted = find(find(optional_document(request), "parameters"), "unload_dependents")
        return wanted is not MISSING and as_bool(wanted)
    except (InternalError, InvalidArgumentError):
        return False
