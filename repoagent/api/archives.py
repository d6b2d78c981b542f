"""Zip archives of others: the number of members, their names and their sizes are checked before one is used."""

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import BinaryIO, Final

from repoagent.beneath.opening import relative_parts
from repoagent.errors import InvalidArgumentError, UnsafePathError, UnsupportedError

_MOST_MEMBERS: Final = 10_000
_LIST_BYTES: Final = 8 << 20
_PIECE: Final = 1 << 20
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Of others, Python unpacks all of a piece at once, however little of it is asked for."""
_DAMAGED: Final = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError)
"""What the library raises of bytes; an archive with a password is a RuntimeError to it."""


class Archive:
    """The members of a zip archive, of which none unpacks to more than it claims. It is for one thread at a time."""

    def __init__(self, file: BinaryIO, most_bytes: int) -> None:
        """List the members.

        Args:
            file: The archive, open as long as this is used.
            most_bytes: How many bytes all members may have together, once they are unpacked.

        Raises:
            InvalidArgumentError: it is not an archive, or one that programs read in different ways.
            UnsupportedError: it is too large, has too many members, or is packed in an uncommon way.
        """
        with _refusing("is not a zip archive, or is damaged"):
            size = file.seek(0, 2)
            source = _Source(file)
            self._zip = zipfile.ZipFile(source)
            source.is_listed = True
        members = self._zip.infolist()
        if any(one.compress_type not in _METHODS for one in members):
            raise UnsupportedError("has members that are neither stored nor deflated")
        if sum(one.file_size for one in members) > most_bytes:
            raise UnsupportedError(f"unpacks to more than {most_bytes} bytes")
        if sum(one.compress_size for one in members) > size:
            raise InvalidArgumentError("has members that share their bytes")
        if len({_parts(one) for one in members}) < len(members):
            raise InvalidArgumentError("has two members with one name")
        self._members = {one.filename: one for one in members}

    @property
    def names(self) -> list[str]:
        """The names of the members, in the order of the list."""
        return [*self._members]

    def read(self, name: str) -> bytes:
        """A member, unpacked.

        Raises:
            InvalidArgumentError: there is none, or it is damaged, or has another size than it claims.
        """
        return b"".join(self._pieces(name))

    def check(self) -> None:
        """Unpack all members once, for a library that is to read the file by itself, in little memory.

        Raises as :meth:`read` does.
        """
        for name in self._members:
            for _ in self._pieces(name):
                pass

    def _pieces(self, name: str) -> Iterator[bytes]:
        if name not in self._members:
            raise InvalidArgumentError(f"has no member '{name[:80]}'")
        member = copy(self._members[name])
        left = member.file_size
        member.file_size += 1  # zipfile leaves out what is beyond the size, and other programs do not
        with _refusing(f"the member '{name[:80]}' is damaged"), self._zip.open(member) as file:
            while piece := file.read(_PIECE):
                left -= len(piece)
                if left < 0:
                    break
                yield piece
        if left:
            raise InvalidArgumentError(f"the member '{name[:80]}' has another size than it claims")


class _Source:
    """A file as zipfile reads it: the list of members comes in one piece, and is looked at before it is taken apart."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.is_listed = file, False
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        """At most as much as a list has."""
        if size > _LIST_BYTES:
            raise UnsupportedError(f"has a list of members of more than {_LIST_BYTES} bytes")
        data = self._file.read(size if size >= 0 else _LIST_BYTES)
        if not self.is_listed and data.count(b"PK\1\2") > _MOST_MEMBERS:  # a million takes half a minute
            raise UnsupportedError(f"has more than {_MOST_MEMBERS} members")
        return data


def _parts(member: zipfile.ZipInfo) -> tuple[str, ...]:
    """The name as a path; raises ``InvalidArgumentError`` if it leads out of a directory, or may."""
    name = member.filename
    if member.orig_filename != name or "\\" in name or not name.isprintable():
        raise InvalidArgumentError("has a name that others read in another way")
    try:
        return relative_parts(name)
    except UnsafePathError as error:
        raise InvalidArgumentError(f"the member {error.message.partition(';')[0]}") from None


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGED:
        raise InvalidArgumentError(what) from None
