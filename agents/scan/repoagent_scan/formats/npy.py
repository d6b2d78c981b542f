"""NumPy's arrays. One of objects is a pickle behind the header, and its type can be spelled in many ways."""

import ast
import math
import re
from typing import Any, Final

from repoagent_scan.formats.content import Buffer
from repoagent_scan.formats.format import MalformedError

_MAGIC: Final = b"\x93NUMPY"
_VERSIONS: Final = (b"\x01\0", b"\x02\0", b"\x03\0")
_LARGEST_HEADER: Final = 10_000
"""NumPy's own limit."""
_DEEPEST: Final = 32
_STRING: Final = re.compile(r"""[bu]?(?:'(?:[^'\\\n]++|\\.)*+'|"(?:[^"\\\n]++|\\.)*+")""")
_WORDS: Final = re.compile(r"(?:[{}()\[\],:]|[0-9]++|True|False|None)*+")
_CHAIN: Final = re.compile(r"[\w)}\]][\[({]")
"""Calls and indices, which follow each other without a bracket in another."""
_INNERMOST: Final = re.compile(r"[\[({][^\[\](){}]*+[\])}]")
_PLAIN: Final = re.compile(r"[<>|=]?([?bBiufcSaUVmM])([0-9]{1,9})(\[[0-9A-Za-z]+\])?")
"""A code and a size, as NumPy writes them. All names of types, and whatever is unknown, count as objects."""


def is_array(data: Buffer) -> bool:
    """Whether ``data`` begins as an array does."""
    return data[: len(_MAGIC)] == _MAGIC


def check_array(data: Buffer) -> bool:
    """Whether the array is one of numbers and texts, which fill the file from the header to its end.

    False if it may hold objects.

    Raises:
        MalformedError: the header cannot be read, or the array has another size than the file.
    """
    if data[6:8] not in _VERSIONS:
        raise MalformedError("a NumPy array of an unknown version")
    start = 10 if data[6] == 1 else 12
    size = int.from_bytes(data[8:start], "little")
    try:
        text = data[start : start + min(size, _LARGEST_HEADER)].decode()
        _check_form(text)
        header = ast.literal_eval(text)
        width = _width(header["descr"])
        count = math.prod(int(length) for length in header["shape"])
    except (ValueError, SyntaxError, KeyError, TypeError, OverflowError) as error:
        raise MalformedError(f"the header is not that of a NumPy array: {type(error).__name__}") from None
    if width is None:
        return False
    if start + size + count * width != len(data):
        raise MalformedError(f"the array has {count * width} bytes, and {len(data) - start - size} follow the header")
    return True


def _check_form(text: str) -> None:
    """Raise ``ValueError`` for what NumPy does not write: Python's compiler calls itself for each thing in another."""
    bare = "".join(_STRING.sub("0", text).split())
    if _WORDS.fullmatch(bare) is None or _CHAIN.search(bare):
        raise ValueError
    for _ in range(_DEEPEST):
        bare = _INNERMOST.sub("0", bare)
    if not bare.isalnum():
        raise ValueError


def _width(described: Any) -> int | None:
    """The bytes of one element, or None for an object.

    A type is a text, a pair of a type and a shape, or a list of fields: a name, a type, perhaps a shape.
    """
    if isinstance(described, str):
        plain = _PLAIN.fullmatch(described)
        return None if plain is None else int(plain[2]) * (4 if plain[1] == "U" else 1)
    if isinstance(described, list):
        if not all(isinstance(field, tuple) and len(field) in (2, 3) for field in described):
            return None
        widths = [_width(field[1:] if len(field) == 3 else field[1]) for field in described]
        return None if None in widths else sum(width for width in widths if width is not None)
    if isinstance(described, tuple) and len(described) == 2:
        inner, shape = _width(described[0]), described[1]
        return None if inner is None else inner * math.prod(shape if isinstance(shape, tuple) else (shape,))
    return None
