"""The files of the page, and the headers that keep a browser from loading anything else with them."""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

__all__ = ["POLICY", "StaticFile", "static_files"]

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
    for entry in files(__package__).joinpath("static").iterdir():
        suffix = entry.name[entry.name.rfind(".") :]
        if suffix in _TYPES:
            content = entry.read_bytes()
            found[entry.name] = StaticFile(content, _TYPES[suffix], _tag(content))
    return found


def _tag(content: bytes) -> bytes:
    return b'"' + hashlib.sha256(content).hexdigest()[:32].encode() + b'"'
