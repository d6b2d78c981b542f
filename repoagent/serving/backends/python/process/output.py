"""What a child process writes to its standard output and error, for the log."""

import logging
import os
from collections import deque
from typing import Final

__all__ = ["OutputLines"]

logger = logging.getLogger("repoagent.models")
_CHUNK: Final = 1 << 16
_LARGEST_PIPE: Final = 1 << 20
"""What may be in a pipe when nobody writes to it any more, where nobody is privileged."""


class OutputLines:
    """One output stream of a child, line by line into the log."""

    def __init__(self, fd: int, label: str, keep: deque[str] | None = None) -> None:
        os.set_blocking(fd, False)
        self.fd: Final = fd
        self._label = label
        self._keep = keep
        self._rest = b""

    def read(self) -> bool:
        """Take in some of what there is at the moment; False at the end of the stream.

        Not all: somebody may write faster than this reads, and others want to be heard.
        """
        try:
            data = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return True
        if not data:
            self._finish()
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._write(line)
        if len(self._rest) > _CHUNK:
            self._finish()
        return True

    def finish(self) -> None:
        """Take in what is left of a process that has ended. Others may write to the same pipe, without end."""
        for _ in range(_LARGEST_PIPE // _CHUNK):
            if not self.read():
                return
        self._finish()

    def _finish(self) -> None:
        """Write what has come of a line that has not ended: it never will, or is too long to wait for."""
        if self._rest:
            self._write(self._rest)
            self._rest = b""

    def _write(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if self._keep is not None:
            self._keep.append(text)
        logger.info("%s: %s", self._label, text)
