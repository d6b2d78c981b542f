"""The wire format of protobuf, walked field by field without decoding what is not looked at."""

from collections.abc import Callable, Iterator
from typing import Final

from repoagent_scan.formats.content import Buffer
from repoagent_scan.formats.format import MalformedError

Field = tuple[int, int, int, int]
"""Number, wire type, and where the value starts and ends."""

VARINT: Final = 0
BYTES: Final = 2
_FIXED: Final = {1: 8, 5: 4}
_GROUP: Final = (3, 4)
"""Begin and end. No format here has groups."""
_MOST_FIELDS: Final = 20_000_000
"""In one file. The largest published ONNX graphs have about two million."""
_LEAST_TAG, _LARGEST_TAG = 1 << 3, (1 << 32) - 1
_LONGEST_TEXT: Final = 4096
_OFTEN: Final = 1 << 14
"""Fields between two looks at whether the load was cancelled."""


class TooManyFieldsError(MalformedError):
    """The file has more fields than any model. What it is remains unknown."""


class Fields:
    """Walks messages of ``data``. One object counts all fields of a file, so that no file takes forever."""

    def __init__(
        self,
        data: Buffer,
        *,
        most: int = _MOST_FIELDS,
        lenient: bool = False,
        check_cancelled: Callable[[], None] = lambda: None,
    ) -> None:
        """``lenient`` passes over what some readers pass over: groups, and bits of a tag that a tag cannot have."""
        self.data = data
        self._left = most
        self._lenient = lenient
        self._check_cancelled = check_cancelled

    def of(self, start: int, end: int) -> Iterator[Field]:
        """The fields of the message between ``start`` and ``end``.

        Raises:
            MalformedError: the message is cut off, has a wire type that protobuf does not have or no longer uses, or
                the file has more fields than any model.
        """
        position = start
        groups: list[int] = []
        while position < end:
            self._count()
            tag, value = self._tag(position, end)
            kind = tag & 7
            if self._lenient and kind in _GROUP:
                _pass_group(groups, tag, position)
                position = value
                continue
            value, position = self._value(kind, value, end)
            if not groups:
                yield tag >> 3, kind, value, position
        if groups:
            raise MalformedError("a group that does not end")

    def _tag(self, position: int, end: int) -> tuple[int, int]:
        """The tag at ``position``, and the position after it."""
        tag, value = self._varint(position, end)
        if self._lenient:
            tag &= _LARGEST_TAG
        if not _LEAST_TAG <= tag <= _LARGEST_TAG:
            # Some readers drop the bits above, and find another field than the one that stands here.
            raise MalformedError(f"a field that protobuf cannot have at byte {position}")
        return tag, value

    def _value(self, kind: int, value: int, end: int) -> tuple[int, int]:
        """Where the value of this wire type starts and ends, of which the length may stand at ``value``."""
        if kind == BYTES:
            length, value = self._varint(value, end)
            last = value + length
        elif kind == VARINT:
            _, last = self._varint(value, end)
        elif kind in _FIXED:
            last = value + _FIXED[kind]
        else:
            raise MalformedError(f"wire type {kind} before byte {value}")
        if last > end:
            raise MalformedError(f"a field at byte {value} ends {last - end} bytes after its message")
        return value, last

    def varint(self, start: int, end: int) -> int:
        """The number in the field between ``start`` and ``end``. Errors as in :meth:`of`."""
        return self._varint(start, end)[0]

    def varints(self, start: int, end: int) -> Iterator[int]:
        """The numbers of a packed field. Errors as in :meth:`of`."""
        while start < end:
            self._count()
            value, start = self._varint(start, end)
            yield value

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
            raise TooManyFieldsError("more fields than any model has")

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


def _pass_group(groups: list[int], tag: int, position: int) -> None:
    if tag & 7 == _GROUP[0]:
        groups.append(tag >> 3)
    elif not groups or groups.pop() != tag >> 3:
        raise MalformedError(f"the end of a group that did not begin at byte {position}")
