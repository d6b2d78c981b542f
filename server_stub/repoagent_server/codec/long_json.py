"""Long JSON documents, read piece by piece.

A parser written in C holds the interpreter until it is done, and for 40 MB that is most of a second in which no one
else is answered. Here the frame of a document (objects, names, single values) is read by itself, up to a number of
members. Long arrays of values go to the parser in windows, each cut at a comma, and long texts likewise.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from operator import countOf
from typing import Any, Final

import numpy as np

from repoagent.errors import InvalidArgumentError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent_server.codec.binary import Buffer, too_many_texts
from repoagent_server.codec.json_data import Values
from repoagent_server.codec.json_text import JsonObject, UnreadableError, loads, too_deep

LONG_JSON: Final = 1 << 18
"""Documents from this size, in bytes, are better read here and on a thread."""

_WINDOW: Final = 1 << 18
_SHORT: Final = 1 << 9
_SPACE: Final = b" \t\r\n"
_BOM: Final = b"\xef\xbb\xbf"
_NOT_SPACE: Final = re.compile(rb"[^ \t\r\n]")
_SCALAR: Final = re.compile(rb"[-+0-9A-Za-z.]{1,400}")
_TEXT: Final = re.compile(
    rb'(?:[^"\\]++|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\[^u])*+', re.DOTALL
)
"""Whole characters and escapes of a string."""
_HALF: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")
_ESCAPE_SIZE: Final = 6
_CONTINUATIONS: Final = 4
_MEMBERS_OF_A_TENSOR: Final = 10
_LOOK_EVERY: Final = 32
_BLANK: Final = ord("_")
_COMMA, _QUOTE, _COLON = b',":'
_OPEN, _CLOSE, _BEGIN, _END = b"[]{}"


@dataclass(frozen=True, slots=True)
class Frame:
    """What the frame of a document may be: all that is not in a long array."""

    members: int
    """Members of objects and objects in arrays, all together."""
    depth: int
    texts: int = DEFAULT_LIMITS.request_texts
    """Texts in arrays, all together."""
    text_bytes: int = DEFAULT_LIMITS.json_text_bytes
    """Of one text."""


def frame_within(limits: Limits) -> Frame:
    """What the frame of an inference request may be: an input or output is an object of some members."""
    tensors = 2 * _MEMBERS_OF_A_TENSOR * limits.request_tensors
    members = tensors + limits.request_parameters
    return Frame(members, limits.json_depth, limits.request_texts, limits.json_text_bytes)


def read_long(
    data: Buffer, frame: Frame, *, ordered: bool = False, look: Callable[[], None] | None = None
) -> dict[str, Any] | JsonObject | Any:
    """The document in ``data`` as ``loads`` gives it, but with :class:`Values` for long arrays of values.

    Args:
        data: JSON text.
        frame: What is too much.
        ordered: Objects are :class:`JsonObject`, as of ``loads_ordered``.
        look: Called between pieces; what it raises ends the reading.

    Raises:
        InternalError: it does not parse.
        InvalidArgumentError: it has too many members or texts, too long a text, or is nested too deeply.
    """
    view = memoryview(data)
    reader = _Reader(view, frame, ordered, look or _nothing)
    return reader.document(len(_BOM) if bytes(view[: len(_BOM)]) == _BOM else 0)


def _nothing() -> None:
    pass


class _Reader:
    """Reads one document. Every method takes the position of a token and returns that behind it."""

    def __init__(self, data: memoryview, frame: Frame, ordered: bool, look: Callable[[], None]) -> None:
        self._data = data
        self._frame = frame
        self._ordered = ordered
        self._look = look
        self._members = 0
        self._texts = 0

    def document(self, position: int) -> Any:
        value, position = self._value(self._next(position), 0)
        position = self._over_space(position)
        if position < len(self._data):
            raise UnreadableError("The document root must not be followed by other values.", position)
        return value

    def _next(self, position: int) -> int:
        """The position of what comes after white space."""
        position = self._over_space(position)
        if position == len(self._data):
            raise UnreadableError("The document ends too early.", position)
        return position

    def _over_space(self, position: int) -> int:
        """The same; the end of the document if there is nothing more."""
        while (match := _NOT_SPACE.search(self._data, position, position + _WINDOW)) is None:
            position += _WINDOW
            if position >= len(self._data):
                return len(self._data)
            self._look()
        return match.start()

    def _value(self, position: int, depth: int) -> tuple[Any, int]:
        kind = self._data[position]
        if kind == _BEGIN:
            return self._object(position, depth + 1)
        if kind == _OPEN:
            return self._array(position, depth + 1)
        if kind == _QUOTE:
            return self._text(position + 1)
        match = _SCALAR.match(self._data, position)
        if match is None:
            raise UnreadableError("Invalid value.", position)
        return self._parse(match.group(), position), match.end()

    def _object(self, position: int, depth: int) -> tuple[dict[str, Any] | JsonObject, int]:
        self._enter(depth)
        members = JsonObject()
        position = self._next(position + 1)
        if self._data[position] == _END:
            return (members if self._ordered else {}), position + 1
        while True:
            self._count()
            if self._data[position] != _QUOTE:
                raise UnreadableError("Missing a name for object member.", position)
            name, position = self._text(position + 1)
            position = self._next(position)
            if self._data[position] != _COLON:
                raise UnreadableError("Missing a colon after a name of object member.", position)
            value, position = self._value(self._next(position + 1), depth)
            members.append((name, value))
            position = self._next(position)
            if self._data[position] == _END:
                return (members if self._ordered else dict(members)), position + 1
            if self._data[position] != _COMMA:
                raise UnreadableError("Missing a comma or '}' after an object member.", position)
            position = self._next(position + 1)

    def _array(self, position: int, depth: int) -> tuple[list[Any] | Values, int]:
        self._enter(depth)
        first = self._next(position + 1)
        if self._data[first] != _BEGIN:
            return self._values(position)
        items: list[Any] = []
        position = first
        while True:
            self._count()
            item, position = self._value(position, depth)
            items.append(item)
            position = self._next(position)
            if self._data[position] == _CLOSE:
                return items, position + 1
            if self._data[position] != _COMMA:
                raise UnreadableError("Missing a comma or ']' after an array element.", position)
            position = self._next(position + 1)

    def _values(self, position: int) -> tuple[list[Any] | Values, int]:
        """An array of values, window by window; one that ends in the first is the list that was written.

        A window that ends within arrays is closed by as many brackets, and the next one opened by as many: each is a
        document of its own.
        """
        values = Values()
        depth = 0
        while True:
            self._look()
            window = bytes(self._data[position : position + _WINDOW])
            cut = _cut(window[:_SHORT], depth)  # What follows a short array, such as a shape, is not looked at.
            if cut.depth or not cut.size:
                cut = _cut(window, depth)
            if cut.deepest > self._frame.depth:
                raise too_deep(self._frame.depth)
            if cut.size == 0 and not window.strip(b"[" + _SPACE):
                depth = cut.depth
                position = self._next(position + len(window))
                continue
            if cut.size == 0:
                piece, position, depth = self._long_item(window, position, depth)
                values.nested |= depth > 1
            else:
                piece = self._piece(window[: cut.size], position, depth, cut.depth)
                position += cut.size
                if depth == cut.depth == 0:
                    return piece, position
                values.nested |= cut.deepest > 1
                depth = cut.depth
            values.add(_leaves(piece) if values.nested else piece)
            position, depth = self._over_brackets(position, depth)
            if depth == 0:
                return values, position
            position = self._over_comma(position)

    def _piece(self, window: bytes, position: int, before: int, after: int) -> list[Any]:
        """What ``window`` holds, which is ``before`` arrays deep where it begins and ``after`` where it ends."""
        if after and window.rstrip(_SPACE)[-1:] in (b"[", b","):
            raise UnreadableError("Invalid value.", position + len(window))
        if not (before == after == 0) and b"{" in window and b"{" in _without_texts(window):
            raise InvalidArgumentError("an array of values has an object in it")
        piece: list[Any] = self._parse(b"[" * before + window + b"]" * after, position - before)
        if b'"' in window:
            self._texts += countOf(map(type, _leaves(piece)), str)
            if self._texts > self._frame.texts:
                raise too_many_texts(self._frame.texts)
        return piece

    def _over_comma(self, position: int) -> int:
        """The position of the value behind the comma that comes next."""
        position = self._next(position)
        if self._data[position] != _COMMA:
            raise UnreadableError("Missing a comma or ']' after an array element.", position)
        position = self._next(position + 1)
        if self._data[position] in b"],":
            raise UnreadableError("Invalid value.", position)
        return position

    def _long_item(self, window: bytes, position: int, depth: int) -> tuple[list[Any], int, int]:
        """A text that is longer than a window, and the brackets before it. No other value is."""
        lead = len(window) - len(window.lstrip(b"[" + _SPACE))
        depth += window.count(b"[", 0, lead)
        position += lead
        if lead == len(window) or self._data[position] != _QUOTE:
            raise UnreadableError("Invalid value.", position)
        text, position = self._text(position + 1)
        return [text], position, depth

    def _over_brackets(self, position: int, depth: int) -> tuple[int, int]:
        """Behind the brackets that close arrays here, of which ``depth`` are open."""
        while depth and self._data[following := self._next(position)] == _CLOSE:
            position, depth = following + 1, depth - 1
        return position, depth

    def _text(self, position: int) -> tuple[str, int]:
        """The string whose opening quote is before ``position``."""
        pieces: list[str] = []
        start = position
        while True:
            match = _TEXT.match(self._data, position, position + _WINDOW)
            end = match.end() if match is not None else position
            closed = end < len(self._data) and self._data[end] == _QUOTE
            if not closed:
                end = self._whole_characters(position, end)
            if end - start > self._frame.text_bytes:
                raise InvalidArgumentError(
                    f"a text in the JSON of the request is longer than {self._frame.text_bytes} bytes; send it in the "
                    f"binary form, or raise {Limits.flag('json_text_bytes')}"
                )
            pieces.append(self._parse(b'"%b"' % bytes(self._data[position:end]), position - 1))
            if closed:
                return (pieces[0] if len(pieces) == 1 else "".join(pieces)), end + 1
            position = end
            self._look()

    def _whole_characters(self, start: int, end: int) -> int:
        """Where a piece of a string ends that would end in the middle of a character at ``end``."""
        data = self._data
        if end >= len(data):
            raise UnreadableError("Missing a closing quotation mark in string.", len(data))
        if end == start:
            raise UnreadableError("Incorrect hex digit after \\u escape in string.", start)
        half = end - _ESCAPE_SIZE
        if half > start and _HALF.match(data, half) and _is_escape(bytes(data[start : half + 1])):
            return half
        for back in range(_CONTINUATIONS):
            if data[end - back] & 0xC0 != 0x80:
                return end - back
        return end

    def _parse(self, text: bytes, position: int) -> Any:
        """``text``, whose first byte is taken to be at ``position``."""
        try:
            return loads(text)
        except UnreadableError as error:
            raise UnreadableError(error.reason, position + error.offset) from None

    def _enter(self, depth: int) -> None:
        if depth > self._frame.depth:
            raise too_deep(self._frame.depth)

    def _count(self) -> None:
        self._members += 1
        if self._members % _LOOK_EVERY == 0:
            self._look()
        if self._members > self._frame.members:
            raise InvalidArgumentError(
                f"the JSON of the request has more than {self._frame.members} members beside the values of tensors"
            )


def _is_escape(text: bytes) -> bool:
    """Whether the backslash at the end of ``text`` is not itself escaped."""
    return (len(text) - len(text.rstrip(b"\\"))) % 2 == 1


@dataclass(frozen=True, slots=True)
class _Cut:
    """Where a window of an array ends, so that no value is cut."""

    size: int
    """Bytes before a comma or blanks, or with the bracket that ends the array; 0 if there is none."""
    depth: int
    """How many arrays are open there."""
    deepest: int
    """How many are open where most are."""


def _cut(window: bytes, depth: int) -> _Cut:
    """Find the end of the array that begins ``depth`` arrays above ``window``, or the last comma between its values."""
    outside = _without_texts(window)
    marks = np.frombuffer(outside, np.uint8)
    brackets = np.flatnonzero((marks == _OPEN) | (marks == _CLOSE))
    depths = depth + np.cumsum(np.where(marks[brackets] == _OPEN, 1, -1))  # behind each of them

    def behind(place: int) -> int:
        before = int(np.searchsorted(brackets, place, side="right"))
        return int(depths[before - 1]) if before else depth

    ends = np.flatnonzero(depths == 0)
    if ends.size:
        return _Cut(int(brackets[ends[0]]) + 1, 0, int(depths[: ends[0]].max(initial=depth)))
    comma = outside.rfind(b",")
    deepest = int(depths.max(initial=depth))
    if comma >= 0:
        return _Cut(comma, behind(comma), deepest)
    value = outside.rstrip(_SPACE)
    if len(value) < len(window) and value.strip(b"[" + _SPACE):
        return _Cut(len(value), behind(len(value) - 1), deepest)
    return _Cut(0, behind(len(window)), deepest)


def _without_texts(window: bytes) -> bytes:
    """``window`` with every string in it blank, of the same length. It does not begin within one."""
    if b'"' not in window:
        return window
    if b"\\" in window:
        window = window.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    marks = np.frombuffer(window, np.uint8)
    quotes = np.cumsum(marks == _QUOTE, dtype=np.uint8) & 1
    return np.where(quotes == 0, marks, np.uint8(_BLANK)).tobytes()


def _leaves(values: list[Any]) -> list[Any]:
    """The values of ``values``, without the lists around them."""
    while list in set(map(type, values)):
        values = list(chain.from_iterable(value if type(value) is list else (value,) for value in values))
    return values
