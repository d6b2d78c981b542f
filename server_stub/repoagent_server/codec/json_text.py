"""Reading and writing JSON: orjson, and a slower road for what Triton's parser takes and orjson does not.

Triton reads and writes ``NaN`` and ``Infinity``, and strings that are not UTF-8. Such documents are rare; each function
tries the fast road first and takes the other one only when it must.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
import orjson

from repoagent.errors import InternalError, InvalidArgumentError
from repoagent.limits import DEFAULT_LIMITS
from repoagent.nested_text import check_depth
from repoagent.serving.requests.tensor import Array


def too_deep(limit: int = DEFAULT_LIMITS.json_depth) -> InvalidArgumentError:
    """The error for arrays or objects that are nested too deeply (Triton's text)."""
    return InvalidArgumentError(f"JSON nesting depth exceeds maximum allowed limit ({limit})")


class UnreadableError(InternalError):
    """A document does not parse: ``reason`` at byte ``offset``."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(f"failed to parse the request JSON buffer: {reason} at {offset}")
        self.reason = reason
        self.offset = offset


Fragment = orjson.Fragment
"""A part of a document that is written already."""


def loads(data: bytes | bytearray | memoryview) -> Any:
    """Parse one JSON document.

    Raises:
        InternalError: it is none; the message states what is wrong and at which byte.
        InvalidArgumentError: it is nested so deeply that it cannot be read.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return _loads_leniently(bytes(data).decode("utf-8", "surrogateescape"))


class JsonObject(list[tuple[str, Any]]):
    """An object of a document as it was written: its members in order, with those that share a name."""

    __slots__ = ()


def loads_ordered(data: bytes | bytearray | memoryview) -> Any:
    """As :func:`loads`, with every object as a :class:`JsonObject`."""
    return _loads_leniently(bytes(data).decode("utf-8", "surrogateescape"), JsonObject)


def dumps(document: Any) -> bytes:
    """Write ``document``: plain values and fragments. Strings that are not UTF-8 are written as they came."""
    try:
        return orjson.dumps(document)
    except orjson.JSONEncodeError:
        return _dumps_leniently(document)


LATER: Final = Fragment(b"\0")
"""Stands for a value that is written already, in pieces. What is written of others never has this byte in it."""


def dumps_text(value: object) -> str:
    """The same as a text; bytes that are not Unicode are kept as :func:`loads` reads them."""
    return dumps(value).decode("utf-8", "surrogateescape")


def dumps_with_arrays(
    document: Any, holders: Sequence[dict[str, Any]], later: Sequence[Sequence[bytes]] = ()
) -> Sequence[bytes]:
    """Write ``document``, in which the member ``data`` of each of ``holders`` may be an array as in `array_fragment`.

    One call writes all of it; only where something is not finite are the arrays written one by one. What stands
    ``later`` for each `LATER` goes between pieces without a copy, which would keep the interpreter from others.
    """
    text = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    if _may_hold_null(text):
        for holder in holders:
            if isinstance(holder.get("data"), np.ndarray):
                holder["data"] = array_fragment(holder["data"])
        text = orjson.dumps(document)
    return (text,) if not later else _filled(text, later)


def _filled(text: bytes, values: Sequence[Sequence[bytes]]) -> list[bytes]:
    first, *others = text.split(b"\0")
    pieces = [first]
    for value, behind in zip(values, others, strict=True):
        pieces += [*value, behind]
    return pieces


def _may_hold_null(text: bytes) -> bool:
    """Whether orjson has written ``null``, for what is not finite. In a name it costs time, no more.

    Letters of it that are not in the usual names between the arrays are looked for first, which takes a fifth of the
    time.
    """
    start = max(0, text.find(_FIRST_ARRAY))
    return text.find(b"l", start) >= 0 and text.find(b"u", start) >= 0 and text.find(b"null", start) >= 0


LONG_ARRAY: Final = 1 << 16
"""How many values are written in one go."""

_FIRST_ARRAY: Final = b'"data":'


def fragment(document: Any) -> Fragment:
    """``document``, which may hold strings that are not UTF-8, as a part of another one."""
    return Fragment(dumps(document))


def array_fragment(array: Array) -> Fragment:
    """A contiguous one-dimensional array of numbers or booleans as a part of a document.

    What is not finite is written as Triton writes it: ``NaN``, ``Infinity``, ``-Infinity``.
    """
    return Fragment(b"".join(array_pieces(array)))


def array_pieces(array: Array) -> list[bytes]:
    """The same of a long array, in pieces, so that others have a turn in between."""
    if array.size <= LONG_ARRAY:
        return [_array_text(array)]
    pieces = [b"["]
    for start in range(0, array.size, LONG_ARRAY):
        pieces += [_array_text(array[start : start + LONG_ARRAY])[1:-1], b","]
    return [*pieces[:-1], b"]"]


LONG_TEXT: Final = 1 << 20
"""How many bytes of text are written in one go."""


def list_pieces(elements: Iterable[bytes]) -> Iterator[bytes]:
    """The texts in ``elements`` as a list: written piece by piece, so that others have a turn in between."""
    before = b"["
    for batch in _batches(iter(elements)):
        yield before
        before = b","
        if isinstance(batch, list):
            yield dumps([text.decode("utf-8", "surrogateescape") for text in batch])[1:-1]
        else:
            yield b'"'
            yield from (dumps(piece.decode("utf-8", "surrogateescape"))[1:-1] for piece in _cut(batch))
            yield b'"'
    yield b"[]" if before == b"[" else b"]"


def _batches(elements: Iterator[bytes]) -> Iterator[list[bytes] | bytes]:
    """Texts to be written together, or one that is too long for that."""
    while batch := list(islice(elements, LONG_ARRAY)):
        if sum(map(len, batch)) <= LONG_TEXT:
            yield batch
            continue
        start = size = 0
        for end, text in enumerate(batch):
            if start < end and size + len(text) > LONG_TEXT:
                yield batch[start:end]
                start, size = end, 0
            if len(text) > LONG_TEXT:
                yield text
                start, size = end + 1, 0
            else:
                size += len(text)
        if start < len(batch):
            yield batch[start:]


def _cut(text: bytes) -> Iterator[bytes]:
    """``text`` in pieces, none of which ends within a character."""
    start = 0
    while start < len(text):
        end = start + LONG_TEXT
        while end < len(text) and end > start + 1 and text[end] & 0xC0 == 0x80:
            end -= 1
        yield text[start:end]
        start = end


def _array_text(array: Array) -> bytes:
    text = orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)
    # orjson writes null for what is not finite; no number has a "u" in it.
    if array.dtype.kind == "f" and b"u" in text:
        text = _dumps_leniently(array.tolist())
    return text


def _dumps_leniently(document: Any) -> bytes:
    # Only the part with such a string takes this road: the others may be written already, which json cannot know.
    if isinstance(document, dict):
        return b"{%b}" % b",".join(dumps(str(name)) + b":" + dumps(value) for name, value in document.items())
    if isinstance(document, list) and any(isinstance(item, dict | list | Fragment) for item in document):
        return b"[%b]" % b",".join(map(dumps, document))
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a pair that no bytes stand for, written as Triton writes it: in three bytes
        return text.encode("utf-8", "surrogatepass")


_DEEPEST: Final = 800
"""Levels that Python's parser is given; the limits of requests are lower, and name themselves."""
_BOM: Final = "\ufeff"
"""What some editors put before UTF-8; Triton passes over it."""


def _loads_leniently(text: str, objects: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    try:
        check_depth(text, _DEEPEST)
    except ValueError:
        raise too_deep() from None
    try:
        document = json.loads(text.removeprefix(_BOM), parse_float=_finite, parse_int=_whole, object_pairs_hook=objects)
        _refuse_half_pairs(text)
        return document
    except _TooBigError as error:
        raise _unreadable("Number too big to be stored in double.", text, text.find(str(error))) from None
    except json.JSONDecodeError as error:
        raise _unreadable(*_explain(text, error.msg, error.pos + text.startswith(_BOM))) from None


def _refuse_half_pairs(text: str) -> None:
    r"""Refuse ``\ud800`` without a ``\udc00`` behind it, in a document that is good otherwise."""
    import re

    if "\\ud" not in text and "\\uD" not in text:
        return
    pair = r"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    for match in re.finditer(rf"\\(?:{pair}|(u[dD][89abAB])|.)", text, re.DOTALL):
        if match[1]:
            raise _unreadable("The surrogate pair in string is invalid.", text, match.start())


_DIGITS: Final = 308
"""Any number of so many is a float."""


class _TooBigError(Exception):
    """Its text is the number."""


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise _TooBigError(digits)
    return value


def _whole(digits: str) -> int:
    """What no float can hold is refused here: sooner or later all numbers become some."""
    if len(digits) > _DIGITS:
        _finite(digits)
    return int(digits)


def _unreadable(reason: str, text: str, position: int) -> UnreadableError:
    return UnreadableError(reason, len(text[:position].encode("utf-8", "surrogateescape")))


_REASONS: Final = {
    "Expecting property name enclosed in double quotes": "Missing a name for object member.",
    "Illegal trailing comma before end of object": "Missing a name for object member.",
    "Illegal trailing comma before end of array": "Invalid value.",
    "Expecting ':' delimiter": "Missing a colon after a name of object member.",
    "Extra data": "The document root must not be followed by other values.",
    "Invalid control character at": "Invalid escape character in string.",
}


def _explain(text: str, message: str, position: int) -> tuple[str, str, int]:
    """Triton's words for what Python's parser complains about."""
    if not text.removeprefix(_BOM).strip(" \t\r\n"):
        return "The document is empty.", text, len(text)
    if message.startswith("Unterminated string"):
        return "Missing a closing quotation mark in string.", text, len(text)
    if message.startswith("Invalid \\escape"):
        return "Invalid escape character in string.", text, position
    if message.startswith("Invalid \\uXXXX"):
        return "Incorrect hex digit after \\u escape in string.", text, position - 1
    if message == "Expecting ',' delimiter":
        return _missing_comma(text, position)
    if message.startswith("Illegal trailing comma"):  # From Python 3.13 on, and the position is that of the comma.
        position = len(text) - len(text[position + 1 :].lstrip(" \t\r\n"))
    return _REASONS.get(message, "Invalid value."), text, position


def _missing_comma(text: str, position: int) -> tuple[str, str, int]:
    following = text[position : position + 1]
    if following == "." and text[position - 1].isdigit():
        return "Miss fraction part in number.", text, position + 1
    if following in ("e", "E") and text[position - 1].isdigit():
        return "Miss exponent in number.", text, position + 1
    if _innermost(text[:position]) == "{":
        return "Missing a comma or '}' after an object member.", text, position
    return "Missing a comma or ']' after an array element.", text, position


def _innermost(text: str) -> str:
    """The bracket that is still open at the end of ``text``, which is the start of a valid document."""
    depth = 0
    for character in reversed(json.dumps("") + _without_strings(text)):
        if character in "]}":
            depth += 1
        elif character in "[{":
            if depth == 0:
                return character
            depth -= 1
    return ""


def _without_strings(text: str) -> str:
    import re

    return re.sub(r'"(?:[^"\\]++|\\.)*+"', "", text)
