"""Whether bytes are a pickle: pickles have no magic number, and the oldest are plain text.

The opcodes are read as an unpickler would, with its stack, but nothing is executed. So a list of words that happens to
begin with an opcode is not taken for a pickle: its stack runs dry.
"""

import io
import pickletools
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

__all__ = ["looks_like_pickle"]

_IMPORTS: Final = frozenset({"GLOBAL", "STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"})
_CALLS: Final = frozenset({"REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "STOP"})
"""What runs code once something is imported; a pickle that only imports counts too."""
_NAMES: Final = re.compile(r"\S+ \S+")
_ENOUGH: Final = 4
"""Opcodes after a protocol header that no other format has by chance."""
_TOO_MANY: Final = 2_000
"""Opcodes that no text has by chance. What comes after them is not looked at: it may be the import."""
_MARK: Final = pickletools.markobject
_OPCODES: Final = {opcode.code: opcode for opcode in pickletools.opcodes}
_LINES: Final = {
    "INT": re.compile(rb"\s*[-+]?[0-9A-Fa-fxXoO_]+\s*"),
    "LONG": re.compile(rb"\s*[-+]?[0-9A-Fa-fxXoO_]+L?\s*"),
    "STRING": re.compile(rb"(['\"]).*\1\s*", re.DOTALL),
}
"""Arguments that unpicklers take and ``pickletools`` does not: numbers in other bases, texts that are not ASCII."""


def looks_like_pickle(head: bytes) -> bool:
    """Whether an unpickler would run code in a file that begins with ``head``, or would read it as data to its end."""
    reading = _Reading()
    with suppress(Exception):  # whatever a broken stream makes the parser raise: the opcodes before it count
        for opcode, argument in _opcodes(io.BytesIO(head)):
            if reading.take(opcode, argument):
                return True
            if reading.count > _TOO_MANY:
                return True
    return reading.has_header and reading.count > _ENOUGH


def _opcodes(stream: io.BytesIO) -> Iterator[tuple[pickletools.OpcodeInfo, Any]]:
    """The opcodes of all pickles in ``stream``: programs such as PyTorch read several, one after the other.

    Raises:
        Exception: an unpickler would stop here; which kind depends on the opcode.
    """
    while code := stream.read(1):
        opcode = _OPCODES[code.decode("latin-1")]
        yield opcode, _argument(opcode, stream)


def _argument(opcode: pickletools.OpcodeInfo, stream: io.BytesIO) -> Any:
    pattern = _LINES.get(opcode.name)
    if pattern is None:
        return opcode.arg.reader(stream) if opcode.arg is not None else None
    line = stream.readline()
    if not line.endswith(b"\n") or not pattern.fullmatch(line):
        raise ValueError("not an argument of this opcode")
    return line


class _Reading:
    """How far an unpickler would come."""

    def __init__(self) -> None:
        self.count = 0
        self.has_header = False
        self._imported = False
        self._stack: list[Any] = []

    def take(self, opcode: pickletools.OpcodeInfo, argument: Any) -> bool:
        """Take one opcode; whether the stream is a pickle for certain.

        Raises:
            IndexError: an unpickler would stop here, because its stack is too short.
            ValueError: what it would import has no name that a module can have.
        """
        self.count += 1
        if self.count == 1 and opcode.name == "PROTO":
            self.has_header = True
        self._move(opcode)
        if opcode.name in _IMPORTS:
            if isinstance(argument, str) and not _NAMES.fullmatch(argument):
                raise ValueError("not a name")
            self._imported = True
        return opcode.name in _CALLS and (self._imported or (self.has_header and opcode.name == "STOP"))

    def _move(self, opcode: pickletools.OpcodeInfo) -> None:
        before = opcode.stack_before
        if _MARK in before or (opcode.name == "POP" and self._stack and self._stack[-1] is _MARK):
            while self._stack.pop() is not _MARK:
                pass
            before = before[: before.index(_MARK)] if _MARK in before else []
        for _ in before:
            if self._stack.pop() is _MARK:
                raise IndexError("a mark where a value should be")
        self._stack.extend(opcode.stack_after)
