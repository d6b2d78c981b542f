"""ASCII armor: strict PEM (RFC 7468, figure 3) with the label ``AGE ENCRYPTED FILE``.

Meant for keys and small files that travel as text; a line at a time, about 50 MB/s.
"""

import base64
import binascii
from types import TracebackType
from typing import BinaryIO, Final

from repoagent_decrypt.age.source import PeekReader
from repoagent_decrypt.files.errors import ArmorError

_BEGIN: Final = b"-----BEGIN AGE ENCRYPTED FILE-----"
_END: Final = b"-----END AGE ENCRYPTED FILE-----"
_COLUMNS: Final = 64
_LINE_BYTES: Final = 48
_WHITESPACE: Final = b" \t\r\n"
_MAX_LEADING: Final = 1024
_MAX_LINE: Final = 128


def looks_armored(source: PeekReader) -> bool:
    """Whether the next thing, after white space, is the armor's first line. Reads nothing."""
    ahead = source.peek(64)
    if ahead[:1] in _WHITESPACE:
        ahead = source.peek(_MAX_LEADING + len(_BEGIN)).lstrip(_WHITESPACE)
    return ahead.startswith(_BEGIN)


class ArmorReader:
    """Reads the bytes inside the armor. Every read may raise ``ArmorError``."""

    def __init__(self, source: PeekReader) -> None:
        self._source = source
        self._begun = self._ended = self._short = False
        self._line = 0
        self._buffer = bytearray()

    def read(self, size: int = -1, /) -> bytes:
        """At most ``size`` bytes (all if negative); empty after the end line."""
        while not self._ended and (size < 0 or len(self._buffer) < size):
            self._decode_line()
        size = len(self._buffer) if size < 0 else size
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _decode_line(self) -> None:
        if not self._begun:
            self._begin()
        line = self._next_line()
        if line == _END:
            self._check_nothing_follows()
            self._ended = True
        elif self._short:
            raise ArmorError(f"line {self._line} of the armor follows a short line, so it should be '{_END.decode()}'")
        else:
            self._buffer += self._decode(line)
            self._short = len(line) < _COLUMNS or line.endswith(b"=")

    def _begin(self) -> None:
        ahead = self._source.peek(_MAX_LEADING + 1)
        blank = len(ahead) - len(ahead.lstrip(_WHITESPACE))
        if blank > _MAX_LEADING:
            raise ArmorError("too much white space before the armor")
        self._source.read(blank)
        if self._next_line() != _BEGIN:
            raise ArmorError(f"the armor does not begin with the line '{_BEGIN.decode()}'")
        self._begun = True

    def _next_line(self) -> bytes:
        self._line += 1
        line = self._source.readline(_MAX_LINE)
        if not line.endswith(b"\n") and line != _END:
            raise ArmorError(f"line {self._line} of the armor is too long" if line else "the armor has no end line")
        return line.removesuffix(b"\n").removesuffix(b"\r") if line.endswith(b"\n") else line

    def _decode(self, line: bytes) -> bytes:
        if not 0 < len(line) <= _COLUMNS:
            raise ArmorError(f"line {self._line} of the armor has {len(line)} columns, not 1 to {_COLUMNS}")
        try:
            data = binascii.a2b_base64(line, strict_mode=True)
        except binascii.Error as error:
            raise ArmorError(f"line {self._line} of the armor is not base64: {error}") from None
        if base64.b64encode(data) != line:
            raise ArmorError(f"line {self._line} of the armor is not canonical base64")
        return data

    def _check_nothing_follows(self) -> None:
        while rest := self._source.read(8192):
            if rest.strip(_WHITESPACE):
                raise ArmorError("something follows the armor's end line")


class ArmorWriter:
    """Writes armor around what is written to it. ``finish`` ends it; leaving ``with`` by an exception does not."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self._rest = b""
        target.write(_BEGIN + b"\n")

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        """Take ``data``; whole lines go out at once."""
        pending = self._rest + bytes(data)
        whole = len(pending) - len(pending) % _LINE_BYTES
        self._rest = pending[whole:]
        self._emit(pending[:whole])
        return len(data)

    def finish(self) -> None:
        """Write the last line and the end line. The target stays open."""
        self._emit(self._rest)
        self._rest = b""
        self._target.write(_END + b"\n")

    def __enter__(self) -> "ArmorWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()

    def _emit(self, data: bytes) -> None:
        lines = (data[start : start + _LINE_BYTES] for start in range(0, len(data), _LINE_BYTES))
        self._target.write(b"".join(base64.b64encode(line) + b"\n" for line in lines))
