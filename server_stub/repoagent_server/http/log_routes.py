"""``v2/logging``: the logging extension over HTTP."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from repoagent.errors import UnavailableError, UnsupportedError
from repoagent_server.access import Right
from repoagent_server.access.rights import for_all
from repoagent_server.codec.fields import MISSING, as_bool, as_string, as_unsigned, find
from repoagent_server.handlers.log_settings import LOG_FILE_IS_FIXED, LOG_FORMATS, LogChanges, LogSettingsHandler
from repoagent_server.handlers.restrictions import Api
from repoagent_server.http.access import acting
from repoagent_server.http.json_body import document
from repoagent_server.http.messages import Request, Response, json_response
from repoagent_server.http.router import Params, Route

__all__ = ["log_route"]

_METHODS: Final = frozenset({b"GET", b"POST"})
_Value = TypeVar("_Value")


def log_route(handler: LogSettingsHandler) -> Route:
    """GET shows the settings, POST changes some of them and shows all."""

    def answer(request: Request, _: Params) -> Response:
        if request.method == b"POST":
            with acting(request):
                handler.update(_changes(document(request)))
        return json_response(handler.settings())

    # In a thread: a change waits for its line in the audit log.
    return Route("/v2/logging", _METHODS, blocking=answer, api=Api.LOGGING, needs=for_all(Right.MANAGE))


def _changes(document: object) -> LogChanges:
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
