"""Files of traces: each is one JSON array."""

import io
import logging
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

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
        self._has_written = False

    def append(self, records: Sequence[str]) -> None:
        """Add to ``path``; what was there before this object is overwritten."""
        with self._lock:
            try:
                stream = self._stream
                if stream is None or not os.fstat(stream.fileno()).st_nlink:
                    stream = self._take_new_file()
                self._write(stream, ("," if self._size else "[") + ",".join(records))
            except OSError as error:
                self._complain(self._path, error)

    def _take_new_file(self) -> io.FileIO:
        """Begin ``path``: the first one, or that after one that was removed under this server."""
        removed = self._stream
        if removed is not None:
            Path(self._path).parent.mkdir(parents=True, exist_ok=True)
            logger.warning("the trace file '%s' was removed under this server; it goes on in a new one", self._path)
        self._stream = io.FileIO(self._path, "w")
        self._size = 0
        if removed is not None:
            removed.close()
        return self._stream

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
            if self._has_written:  # Then there was a directory.
                path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"[{','.join(records)}]", encoding="utf-8")
        except OSError as error:
            with suppress(OSError):
                path.unlink()  # A part of it would be no JSON.
            self._complain(str(path), error)
        else:
            self._failing = False
            self._has_written = True

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
