"""Whether bytes are a pickle: pickles have no magic number, and the oldest are plain text.

The opcodes are read as an unpickler would, with its stack, but nothing is executed. So a list of words that happens to
begin with an opcode is not taken for a pickle: its stack runs dry. Arguments are taken as the most lenient unpickler
takes them, and passed over however long they are.
"""

import pickletools
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from repoagent_scan.formats.content import Buffer

_IMPORTS: Final = frozenset({"GLOBAL", "STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"})
_CALLS: Final = frozenset({"REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "STOP"})
"""What runs code once something is imported; a pickle that only imports counts too."""
_ENOUGH: Final = 4
"""Opcodes after a protocol header that no other format has by chance."""
_TOO_MANY: Final = 2_000
"""Opcodes that no text has by chance. What comes after them is not looked at: it may be the import."""
_HIGHEST_PROTOCOL: Final = 15
"""More than there are: the next Python may have another one."""
_MARK: Final = pickletools.markobject
_OPCODES: Final = {ord(opcode.code): opcode for opcode in pickletools.opcodes}
_WIDTHS: Final = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
"""Bytes of the length that precedes an argument."""
_INTEGER: Final = re.compile(rb"\s*[-+]?[0-9A-Za-z_]*L?\s*")
_NAME: Final = re.compile(rb"[^\s\0]+")
_LINES: Final[dict[str, tuple[re.Pattern[bytes], ...]]] = {
    "INT": (_INTEGER,),
    "LONG": (_INTEGER,),
    "PUT": (_INTEGER,),
    "GET": (_INTEGER,),
    "FLOAT": (re.compile(rb"\s*[-+]?(?:[0-9._eE+-]*|(?i:inf|infinity|nan))\s*"),),
    "STRING": (re.compile(rb"(?:'.*'|\".*\")\s*", re.DOTALL),),
    "PERSID": (re.compile(rb"[\0-\x7f]*"),),
    "GLOBAL": (_NAME, _NAME),
    "INST": (_NAME, _NAME),
}
"""Arguments that end a line, as unpicklers take them: numbers in any base, texts that are not ASCII."""
_NUMBERS: Final = frozenset({"INT", "LONG", "FLOAT", "PUT", "GET"})
"""The C unpickler reads these up to a NUL, and does not look at what follows."""
_ANY: Final = (re.compile(rb".*", re.DOTALL),)
_LONG_LINE: Final = 1 << 16
"""A line from this size on is taken for an argument: that it does not end soon is no reason to call it text."""
_PIECE: Final = 1 << 20


def looks_like_pickle(data: Buffer, check_cancelled: Callable[[], None] = lambda: None) -> bool:
    """Whether an unpickler would run code in ``data``, or would read it as data to its end."""
    reading = _Reading()
    stream = _Stream(data, check_cancelled)
    # Programs such as PyTorch read several pickles, one after the other: a STOP is not the end.
    with suppress(_StopError):
        while True:
            opcode = stream.opcode()
            _pass_argument(opcode, stream)
            if reading.take(opcode) or reading.count > _TOO_MANY:
                return True
    return reading.has_header and reading.count > _ENOUGH


class _StopError(Exception):
    """An unpickler would stop here. What ran before has run."""


class _Stream:
    """Bytes that are read one after the other; what an argument holds is not read at all."""

    def __init__(self, data: Buffer, check_cancelled: Callable[[], None]) -> None:
        self._data = data
        self._size = len(data)
        self._check_cancelled = check_cancelled
        self._position = 0

    def opcode(self) -> pickletools.OpcodeInfo:
        opcode = _OPCODES.get(self.number(1))
        if opcode is None:
            raise _StopError
        return opcode

    def number(self, width: int) -> int:
        start = self._position
        self.skip(width)
        return int.from_bytes(self._data[start : self._position], "little")

    def skip(self, size: int) -> None:
        self._position += size
        if self._position > self._size:
            raise _StopError

    def line(self) -> bytes:
        """The line without its end; of a long one only the first part."""
        start = self._position
        position, step = start, 1 << 12
        while position < self._size:
            self._check_cancelled()
            piece = self._data[position : position + step]
            if (found := piece.find(b"\n")) >= 0:
                self._position = position + found + 1
                return self._data[start : min(position + found, start + _LONG_LINE)]
            position, step = position + len(piece), _PIECE
        raise _StopError


def _pass_argument(opcode: pickletools.OpcodeInfo, stream: _Stream) -> None:
    if opcode.name == "PROTO":
        if stream.number(1) > _HIGHEST_PROTOCOL:
            raise _StopError
    elif opcode.arg is None:
        return
    elif opcode.arg.n >= 0:
        stream.skip(opcode.arg.n)
    elif opcode.arg.n == pickletools.UP_TO_NEWLINE:
        for pattern in _LINES.get(opcode.name, _ANY):
            _check_line(opcode.name, stream.line(), pattern)
    else:
        stream.skip(stream.number(_WIDTHS[opcode.arg.n]))


def _check_line(opcode: str, line: bytes, pattern: re.Pattern[bytes]) -> None:
    if len(line) >= _LONG_LINE and opcode not in _IMPORTS:
        return
    text = line.partition(b"\0")[0] if opcode in _NUMBERS else line
    if not pattern.fullmatch(text):
        raise _StopError
    if opcode in _IMPORTS:
        try:
            line.decode()
        except UnicodeDecodeError:
            raise _StopError from None


class _Reading:
    """How far an unpickler would come."""

    def __init__(self) -> None:
        self.count = 0
        self.has_header = False
        self._imported = False
        self._stack: list[Any] = []

    def take(self, opcode: pickletools.OpcodeInfo) -> bool:
        """Take one opcode; whether the stream is a pickle for certain.

        Raises:
            _StopError: an unpickler would stop here, because its stack is too short.
        """
        self.count += 1
        if self.count == 1 and opcode.name == "PROTO":
            self.has_header = True
        self._move(opcode)
        self._imported = self._imported or opcode.name in _IMPORTS
        return opcode.name in _CALLS and (self._imported or (self.has_header and opcode.name == "STOP"))

    def _move(self, opcode: pickletools.OpcodeInfo) -> None:
        before = opcode.stack_before
        if _MARK in before or (opcode.name == "POP" and self._stack and self._stack[-1] is _MARK):
            while self._pop() is not _MARK:
                pass
            before = before[: before.index(_MARK)] if _MARK in before else []
        for _ in before:
            if self._pop() is _MARK:
                raise _StopError
        self._stack.extend(opcode.stack_after)

    def _pop(self) -> Any:
        if not self._stack:
            raise _StopError
        return self._stack.pop()
