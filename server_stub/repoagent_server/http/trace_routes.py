"""``v2/trace/setting`` and ``v2/models/M/trace/setting``: the trace extension over HTTP."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from repoagent.errors import InternalError
from repoagent_server.access import Right
from repoagent_server.access.rights import for_all, for_model
from repoagent_server.codec.fields import MISSING, as_string, complaint, find
from repoagent_server.handlers.restrictions import Api
from repoagent_server.handlers.trace_settings import TraceChanges, TraceSettingsHandler
from repoagent_server.http.access import acting
from repoagent_server.http.json_body import document
from repoagent_server.http.messages import Request, Response, json_response
from repoagent_server.http.router import Params, Route

__all__ = ["trace_routes"]

_METHODS: Final = frozenset({b"GET", b"POST"})
_NUMBERS: Final = ("trace_rate", "trace_count", "log_frequency")


def trace_routes(handler: TraceSettingsHandler) -> list[Route]:
    """GET shows the settings, POST changes some of them and shows all."""

    def answer(request: Request, params: Params) -> Response:
        model = params.get("model", "")
        if request.method == b"POST":
            handler.check_model(model)
            with acting(request):
                handler.update(model, _changes(document(request)))
        return json_response(handler.settings(model))

    setting = partial(Route, methods=_METHODS, blocking=answer, api=Api.TRACE)
    return [
        setting("/v2/trace/setting", needs=for_all(Right.MANAGE)),
        setting("/v2/models/(?P<model>[^/]+)/trace/setting", needs=for_model(Right.MANAGE)),
    ]


def _changes(document: object) -> TraceChanges:
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
