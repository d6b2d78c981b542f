"""Files of traces: each is one JSON array."""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

__all__ = ["TraceFile"]

logger = logging.getLogger(__name__)


class TraceFile:
    """``path`` itself, which grows until :meth:`close`, and ``path.0``, ``path.1``, ..., each written at once.

    What cannot be written is logged and lost: a request does not fail because of its trace.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stream: TextIO | None = None
        self._index = 0

    def append(self, records: Sequence[str]) -> None:
        """Add to ``path``; what was there before this object is overwritten."""
        with self._lock:
            try:
                if self._stream is None:
                    self._stream = Path(self._path).open("w", encoding="utf-8")  # noqa: SIM115 - until close()
                    self._stream.write("[")
                else:
                    self._stream.write(",")
                self._stream.write(",".join(records))
                self._stream.flush()
            except OSError as error:
                logger.error("failed to write traces to '%s': %s", self._path, error)

    def write_numbered(self, records: Sequence[str]) -> None:
        """Write the next numbered file."""
        with self._lock:
            path = Path(f"{self._path}.{self._index}")
            self._index += 1
        try:
            path.write_text(f"[{','.join(records)}]", encoding="utf-8")
        except OSError as error:
            logger.error("failed to write traces to '%s': %s", path, error)

    def close(self) -> None:
        """Complete ``path``, if anything was written to it."""
        with self._lock:
            stream, self._stream = self._stream, None
            if stream is not None:
                with stream:
                    stream.write("]")
