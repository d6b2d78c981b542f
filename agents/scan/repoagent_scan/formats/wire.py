"""The wire format of protobuf, walked field by field without decoding what is not looked at."""

from collections.abc import Callable, Iterator
from typing import Final

from repoagent_scan.formats.content import Buffer
from repoagent_scan.formats.errors import MalformedError

__all__ = ["BYTES", "VARINT", "Field", "Fields"]

Field = tuple[int, int, int, int]
"""Number, wire type, and where the value starts and ends."""

VARINT: Final = 0
BYTES: Final = 2
_FIXED: Final = {1: 8, 5: 4}
_MOST_FIELDS: Final = 20_000_000
"""In one file. The largest published ONNX graphs have about two million."""
_LEAST_TAG, _LARGEST_TAG = 1 << 3, (1 << 32) - 1
_LONGEST_TEXT: Final = 4096
_OFTEN: Final = 1 << 14
"""Fields between two looks at whether the load was cancelled."""


class Fields:
    """Walks messages of ``data``. One object counts all fields of a file, so that no file takes forever."""

    def __init__(
        self, data: Buffer, *, most: int = _MOST_FIELDS, check_cancelled: Callable[[], None] = lambda: None
    ) -> None:
        self.data = data
        self._left = most
        self._check_cancelled = check_cancelled

    def of(self, start: int, end: int) -> Iterator[Field]:
        """The fields of the message between ``start`` and ``end``.

        Raises:
            MalformedError: the message is cut off, has a wire type that protobuf does not have or no longer uses, or
                the file has more fields than any model.
        """
        position = start
        while position < end:
            self._count()
            tag, value = self._varint(position, end)
            if not _LEAST_TAG <= tag <= _LARGEST_TAG:
                # Some readers drop the bits above, and find another field than the one that stands here.
                raise MalformedError(f"a field that protobuf cannot have at byte {position}")
            kind = tag & 7
            if kind == BYTES:
                length, value = self._varint(value, end)
                position = value + length
            elif kind == VARINT:
                _, position = self._varint(value, end)
            elif kind in _FIXED:
                position = value + _FIXED[kind]
            else:
                raise MalformedError(f"wire type {kind} at byte {position}")
            if position > end:
                raise MalformedError(f"a field at byte {value} ends {position - end} bytes after its message")
            yield tag >> 3, kind, value, position

    def text(self, start: int, end: int) -> str:
        """The text between ``start`` and ``end``; bytes that are not UTF-8 are replaced.

        Raises:
            MalformedError: it is longer than any name. To cut it off would be to judge another name.
        """
        if end - start > _LONGEST_TEXT:
            raise MalformedError(f"a name of {end - start} bytes at byte {start}")
        return self.data[start:end].decode(errors="replace")

    def _count(self) -> None:
        self._left -= 1
        if self._left % _OFTEN == 0:
            self._check_cancelled()
        if self._left < 0:
            raise MalformedError("more fields than any model has")

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        """The number at ``position``, and the position after it."""
        value = 0
        for shift in range(0, 70, 7):
            if position >= end:
                raise MalformedError(f"cut off at byte {position}")
            byte = self.data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position
        raise MalformedError(f"a number without end at byte {position}")
