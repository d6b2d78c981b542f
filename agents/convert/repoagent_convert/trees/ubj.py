"""Universal Binary JSON, as much of it as XGBoost writes."""

import struct
from collections.abc import Mapping
from typing import Any, Final

from repoagent.api import InvalidArgumentError

_DEEPEST: Final = 32
_MOST_VALUES: Final = 1 << 24
"""Outside of lists of numbers, which have one mark for all."""
_NUMBERS: Final[Mapping[bytes, str]] = {
    b"i": ">i1",
    b"U": ">u1",
    b"I": ">i2",
    b"l": ">i4",
    b"L": ">i8",
    b"d": ">f4",
    b"D": ">f8",
}
_STRUCTS: Final = {
    mark: struct.Struct(code) for mark, code in zip(_NUMBERS, (">b", ">B", ">h", ">i", ">q", ">f", ">d"), strict=True)
}
_CONSTANTS: Final[Mapping[bytes, Any]] = {b"T": True, b"F": False, b"Z": None}


def read_ubj(data: bytes) -> Any:
    """The value in ``data``; lists of numbers of one kind as NumPy arrays.

    Raises:
        InvalidArgumentError: it is not that, is cut off, or has more in it than is read.
    """
    reader = _Reader(data)
    value = reader.value(reader.take(1), 0)
    if reader.place != len(data):
        raise InvalidArgumentError(f"{len(data) - reader.place} bytes follow the document")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._values = 0
        self.place = 0

    def take(self, count: int) -> bytes:
        """The next bytes: never more than there are."""
        if not 0 <= count <= len(self._data) - self.place:
            raise InvalidArgumentError(f"is cut off, or damaged at byte {self.place}")
        self.place += count
        return self._data[self.place - count : self.place]

    def value(self, mark: bytes, depth: int) -> Any:
        self._values += 1
        if depth > _DEEPEST or self._values > _MOST_VALUES:
            raise InvalidArgumentError(f"is nested deeper than {_DEEPEST} levels, or has over {_MOST_VALUES} values")
        if mark in _STRUCTS:
            return self._number(mark)
        if mark in _CONSTANTS:
            return _CONSTANTS[mark]
        if mark == b"S":
            return self._string()
        if mark == b"[":
            return self._list(depth + 1)
        if mark == b"{":
            return self._object(depth + 1)
        raise InvalidArgumentError(f"has an unknown mark at byte {self.place - 1}")

    def _number(self, mark: bytes) -> int | float:
        form = _STRUCTS[mark]
        number: int | float = form.unpack(self.take(form.size))[0]
        return number

    def _size(self) -> int:
        mark = self.take(1)
        if mark not in _STRUCTS or mark in b"dD":
            raise InvalidArgumentError(f"has a size without a number at byte {self.place - 1}")
        return int(self._number(mark))

    def _string(self) -> str:
        return self.take(self._size()).decode("utf-8", "replace")

    def _next_is(self, mark: bytes) -> bool:
        found = self._data[self.place : self.place + 1] == mark
        self.place += found
        return found

    def _list(self, depth: int) -> Any:
        if self._next_is(b"$"):
            return self._array()
        if self._next_is(b"#"):
            count = self._size()
            if not 0 <= count <= len(self._data) - self.place:
                raise InvalidArgumentError(f"is cut off: a list of {count} values at byte {self.place}")
            return [self.value(self.take(1), depth) for _ in range(count)]
        values = []
        while (mark := self.take(1)) != b"]":
            values.append(self.value(mark, depth))
        return values

    def _array(self) -> Any:
        import numpy as np

        kind = _NUMBERS.get(self.take(1))
        if kind is None or not self._next_is(b"#"):
            raise InvalidArgumentError(f"has a list of an unknown kind at byte {self.place}")
        return np.frombuffer(self.take(self._size() * np.dtype(kind).itemsize), kind)

    def _object(self, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        while not self._next_is(b"}"):
            name = self._string()
            if name in members:
                raise InvalidArgumentError(f"has a member twice at byte {self.place}")
            members[name] = self.value(self.take(1), depth)
        return members
