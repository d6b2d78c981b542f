"""The headers in which a client names the span that its request belongs to (W3C Trace Context)."""

from collections.abc import Iterable
from typing import Final

__all__ = ["trace_context"]

_NAMES: Final = frozenset({"traceparent", "tracestate"})


def trace_context(headers: Iterable[tuple[bytes | str, bytes | str]]) -> dict[str, str] | None:
    """Those of ``headers`` by their lower-case names, or None. Of HTTP, or of gRPC's metadata."""
    found = {}
    for name, value in headers:
        key = _text(name).lower()
        if key in _NAMES:
            found[key] = _text(value)
    return found or None


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
