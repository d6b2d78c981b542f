"""``/ui``: a page about the server's models, and what its viewer may do."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

from repoagent_server.access import Right
from repoagent_server.access.rights import KNOWN, OPEN
from repoagent_server.handlers.operations import Operations
from repoagent_server.http.messages import TEXT, Header, Request, Response, json_response
from repoagent_server.http.service import Params, Route

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy: nothing from another host, nothing inline, no frame around the page."""

_TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file as it is served. ``tag`` changes with its content."""

    content: bytes
    content_type: bytes
    tag: bytes


@cache
def static_files() -> dict[str, StaticFile]:
    """All files by name. They are read once."""
    found = {}
    for entry in files("repoagent_server.ui").joinpath("static").iterdir():
        suffix = entry.name[entry.name.rfind(".") :]
        if suffix in _TYPES:
            content = entry.read_bytes()
            found[entry.name] = StaticFile(content, _TYPES[suffix], _tag(content))
    return found


def _tag(content: bytes) -> bytes:
    return b'"' + hashlib.sha256(content).hexdigest()[:32].encode() + b'"'


_GET: Final = frozenset({b"GET"})
_INDEX: Final = "index.html"
_GUARDS: Final[list[Header]] = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


def ui_routes(operations: Operations, *, explicit: bool) -> list[Route]:
    """The routes. The files are open to everybody, as they hold nothing: what they show, they ask for with a key.

    Args:
        operations: Lists the models.
        explicit: Whether models can be loaded and unloaded by request.
    """
    files = static_files()

    def moved(_: Request, __: Params) -> Response:
        return Response(308, headers=[(b"location", b"ui/")])  # relative: an application may be mounted anywhere

    def file(request: Request, params: Params) -> Response:
        return _file(files, params["file"] or _INDEX, request)

    def session(request: Request, _: Params) -> Response:
        return json_response(_session(operations, request, explicit))

    return [
        Route("/ui", _GET, moved, needs=OPEN),
        Route("/ui/session", _GET, session, pool="work", needs=KNOWN),
        Route("/ui/(?P<file>[a-z_]+[.][a-z]+)?", _GET, file, needs=OPEN),
    ]


def _file(files: Mapping[str, StaticFile], name: str, request: Request) -> Response:
    found = files.get(name)
    if found is None:
        return Response(404, b"Not Found", TEXT)
    headers = [*_GUARDS, (b"etag", found.tag), (b"cache-control", b"no-cache")]
    if request.header(b"if-none-match") == found.tag:
        return Response(304, content_type=found.content_type, headers=headers)
    return Response(200, found.content, found.content_type, headers)


def _session(operations: Operations, request: Request, explicit: bool) -> dict[str, Any]:
    """Who asks, and what the page may offer: the server checks each request itself."""
    caller = request.caller
    names = sorted({entry["name"] for entry in operations.models(ready_only=False, caller=caller)})
    rights: dict[Right, list[str]] = {
        right: [name for name in names if caller is None or caller.may(right, name)]
        for right in (Right.MANAGE, Right.INFER)
    }
    return {
        "client": None if caller is None else caller.name,
        "explicit": explicit,
        "manage": rights[Right.MANAGE],
        "infer": rights[Right.INFER],
    }
