"""What is installed, read once in a process: each loader of a test asks for it, and it takes milliseconds to read.

A test that puts a directory with packages of its own on the path, or takes one away, has all of it read.
"""

import functools
import importlib.metadata
import os
import sys
from typing import Any, Final

_PATH: Final = frozenset(sys.path)
_read: Final = importlib.metadata.entry_points


def keep_entry_points() -> None:
    """``importlib.metadata.entry_points`` answers from what it read before; call this before other imports.

    A distribution that an entry point belongs to reads its metadata once, too.
    """
    importlib.metadata.entry_points = _entry_points
    once = functools.cached_property(importlib.metadata.Distribution.metadata.fget)  # type: ignore[attr-defined]
    once.__set_name__(importlib.metadata.Distribution, "metadata")
    importlib.metadata.Distribution.metadata = once  # type: ignore[method-assign,assignment]


def _entry_points(**wanted: Any) -> Any:
    if not _PATH.issubset(sys.path) or any(_has_packages(place) for place in sys.path if place not in _PATH):
        return _read(**wanted)
    return _kept(tuple(map(_changed, _PATH)), tuple(wanted.items()))


@functools.lru_cache(64)
def _kept(state: tuple[int, ...], wanted: tuple[tuple[str, str], ...]) -> Any:
    return _all(state).select(**dict(wanted))


@functools.lru_cache(1)
def _all(_: tuple[int, ...]) -> Any:
    return _read()


def _changed(place: str) -> int:
    """When something came to a directory, or went: what the standard library looks at, too."""
    try:
        return os.stat(place or ".").st_mtime_ns
    except OSError:
        return 0


def _has_packages(place: str) -> bool:
    try:
        return any(name.endswith(("-info", ".egg")) for name in os.listdir(place or "."))
    except OSError:
        return False
