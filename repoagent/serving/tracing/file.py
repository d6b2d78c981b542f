"""Files of traces: each is one JSON array."""

import io
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["TraceFile"]

logger = logging.getLogger(__name__)


class TraceFile:
    """``path`` itself, which grows until :meth:`close`, and ``path.0``, ``path.1``, ..., each written at once.

    What cannot be written is lost, which is logged once until something can be written again: a request does not fail
    because of its trace, and what was written before stays readable.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stream: io.FileIO | None = None
        self._size = 0
        self._index = 0
        self._failing = False

    def append(self, records: Sequence[str]) -> None:
        """Add to ``path``; what was there before this object is overwritten."""
        with self._lock:
            try:
                if self._stream is None:
                    self._stream = io.FileIO(self._path, "w")
                    self._size = 0
                self._write(self._stream, ("," if self._size else "[") + ",".join(records))
            except OSError as error:
                self._complain(self._path, error)

    def _write(self, stream: io.FileIO, text: str) -> None:
        """Write all of ``text``, or nothing."""
        rest = memoryview(text.encode())
        size = len(rest)
        try:
            while rest:
                rest = rest[stream.write(rest) :]
        except OSError:
            with suppress(OSError):
                stream.truncate(stream.seek(self._size))
            raise
        self._size += size
        self._failing = False

    def write_numbered(self, records: Sequence[str]) -> None:
        """Write the next numbered file."""
        with self._lock:
            path = Path(f"{self._path}.{self._index}")
            self._index += 1
        try:
            path.write_text(f"[{','.join(records)}]", encoding="utf-8")
        except OSError as error:
            with suppress(OSError):
                path.unlink()  # A part of it would be no JSON.
            self._complain(str(path), error)
        else:
            self._failing = False

    def close(self) -> None:
        """Complete ``path``, if anything was written to it."""
        with self._lock:
            stream, self._stream = self._stream, None
            if stream is None:
                return
            try:
                with stream:
                    if self._size:
                        self._write(stream, "]")
            except OSError as error:
                self._complain(self._path, error)

    def _complain(self, path: str, error: OSError) -> None:
        if not self._failing:
            self._failing = True
            logger.error("failed to write traces to '%s', they are lost: %s", path, error.strerror)
