"""The body of a request that is not inference, as JSON."""

from typing import Any, Final

from repoagent.limits import DEFAULT_LIMITS
from repoagent_server.codec.fields import MISSING
from repoagent_server.codec.json_text import loads, too_deep
from repoagent_server.codec.long_json import LONG_JSON, Frame, read_long
from repoagent_server.http.messages import Request

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
