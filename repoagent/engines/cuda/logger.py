"""TensorRT's messages: to the log, and errors to the call that caused them."""

import logging
import threading
import time
from collections import deque
from typing import Final

from repoagent.engines.bindings import trt
from repoagent.public_text import printable

__all__ = ["TensorRtLog"]

logger = logging.getLogger(__name__)

_KEPT: Final = 16
"""Errors: later ones are consequences, and a thread of the library never clears its own."""
_MOST_CHARACTERS: Final = 2000


class TensorRtLog(trt.ILogger):  # type: ignore[misc, unused-ignore]
    """Collects the errors of each thread that calls, and those of threads of the library's own."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self._calling = threading.local()
        self._others: deque[tuple[float, str]] = deque(maxlen=_KEPT)

    def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
        """Called by TensorRT. What is raised here is lost."""
        text = printable(msg[:_MOST_CHARACTERS])  # A plan may have put its names into it.
        if severity in (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR):
            self._note(text)
            logger.error("TensorRT: %s", text)
        elif severity == trt.ILogger.Severity.WARNING:
            logger.warning("TensorRT: %s", text)
        else:
            logger.debug("TensorRT: %s", text)

    def _note(self, text: str) -> None:
        errors: list[str] | None = getattr(self._calling, "errors", None)
        if errors is None:
            self._others.append((time.monotonic(), text))
        elif len(errors) < _KEPT:
            errors.append(text)

    def clear(self) -> None:
        """Forget the errors of the calling thread; a call of TensorRT follows."""
        self._calling.errors = []
        self._calling.since = time.monotonic()

    def reason(self) -> str:
        """The first error since :meth:`clear`, of the calling thread if it has one: what follows are consequences."""
        errors: list[str] = getattr(self._calling, "errors", [])
        since: float = getattr(self._calling, "since", 0.0)
        found = errors or [text for moment, text in tuple(self._others) if moment >= since]
        return found[0] if found else "TensorRT gave no reason"
