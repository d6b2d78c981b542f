"""The end of an audit log that an earlier server wrote: where its chain goes on, and what a kill left of a line."""

import os
from dataclasses import dataclass

from repoagent.audit.lines import LONGEST_LINE, Head, LineError, digest, may_begin_line, read_line

__all__ = ["Tail", "first_number", "read_tail"]


@dataclass(frozen=True, slots=True)
class Tail:
    """``head`` is that of the last whole line, None if there is none; ``size`` where that line ends."""

    head: Head | None
    size: int
    torn: bytes
    """What follows: the beginning of a line whose write was cut short."""


def read_tail(fd: int) -> Tail:
    """Read the end of the file ``fd``.

    Raises:
        LineError: it does not end like an audit log.
    """
    size = os.fstat(fd).st_size
    start = max(0, size - 2 * (LONGEST_LINE + 1))
    data = os.pread(fd, size - start, start)
    whole, newline, torn = data.rpartition(b"\n")
    if len(torn) > LONGEST_LINE:
        raise LineError("its last line is too long for an audit log")
    if not newline:
        if not may_begin_line(torn):
            raise LineError("it has no line, and what it has is not the beginning of one")
        return Tail(None, 0, torn)
    line = whole.rpartition(b"\n")[2]
    fields = read_line(line)
    return Tail(Head(fields["seq"], digest(line + b"\n")), size - len(torn), torn)


def first_number(fd: int) -> int:
    """The sequence number of the first line of the file ``fd``; 0 if it has none."""
    line, newline, _ = os.pread(fd, LONGEST_LINE + 1, 0).partition(b"\n")
    if not newline:
        return 0
    try:
        number: int = read_line(line)["seq"]
    except LineError:
        return 0
    return number
