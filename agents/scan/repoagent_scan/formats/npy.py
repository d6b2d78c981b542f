"""NumPy's arrays. One of objects is a pickle behind the header, and its type can be spelled in many ways."""

import ast
import re
from typing import Any, Final

from repoagent_scan.formats.errors import MalformedError

__all__ = ["holds_pickle"]

_LARGEST_HEADER: Final = 10_000
"""NumPy's own limit."""
_PLAIN: Final = re.compile(r"[<>|=]?[?bBhHiIlLqQfFdDgGeScuUVmM][0-9]*(\[[0-9A-Za-z]+\])?")
"""A code and a size. All names of types, and whatever is unknown, count as objects."""


def holds_pickle(head: bytes) -> bool:
    """Whether the array in a file that begins with ``head`` may hold objects.

    Raises:
        MalformedError: the header cannot be read.
    """
    start = 10 if head[6:7] == b"\x01" else 12
    size = int.from_bytes(head[8:start], "little")
    try:
        header = ast.literal_eval(head[start : start + min(size, _LARGEST_HEADER)].decode())
        return not _is_plain(header["descr"])
    except (ValueError, SyntaxError, KeyError, TypeError, RecursionError, MemoryError) as error:
        raise MalformedError(f"the header is not that of a NumPy array: {type(error).__name__}") from None


def _is_plain(described: Any) -> bool:
    """A type is a text, a pair of a type and a shape, or a list of fields: a name, a type, perhaps a shape."""
    if isinstance(described, str):
        return _PLAIN.fullmatch(described) is not None
    if isinstance(described, list):
        return all(isinstance(field, tuple) and len(field) in (2, 3) and _is_plain(field[1]) for field in described)
    return isinstance(described, tuple) and len(described) == 2 and _is_plain(described[0])
