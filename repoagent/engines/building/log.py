"""TensorRT's log. A process has one logger: the library keeps the first one it is given and ignores all others."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from repoagent.engines.bindings import trt

__all__ = ["collected", "first_error", "logger"]

_python: Final = logging.getLogger("repoagent.tensorrt")
_NOISE: Final = "cudaError"
"""On a machine without a driver most failures are followed by an error about that."""


class _Logger(trt.ILogger):  # type: ignore[misc]
    """Keeps errors for those who collect. What it raises would be swallowed, so it raises nothing."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self._lock = threading.Lock()
        self._lists: list[list[str]] = []

    def log(self, severity: Any, msg: str) -> None:
        """Take one message of the library."""
        if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
            with self._lock:
                for one in self._lists:
                    one.append(msg)
            _python.debug("error: %s", msg)
        else:
            _python.debug("%s", msg)

    def add(self, errors: list[str]) -> None:
        """Put the errors from now on into ``errors``, too."""
        with self._lock:
            self._lists.append(errors)

    def remove(self, errors: list[str]) -> None:
        """Put no more there."""
        with self._lock:
            self._lists = [one for one in self._lists if one is not errors]


logger: Final = _Logger()


@contextmanager
def collected() -> Iterator[list[str]]:
    """The errors that are logged inside the block, on any thread."""
    errors: list[str] = []
    logger.add(errors)
    try:
        yield errors
    finally:
        logger.remove(errors)


def first_error(errors: list[str]) -> str:
    """What to show of several: the first, as later ones follow from it, and rather not one about the driver."""
    telling = [error for error in errors if _NOISE not in error] or errors
    return _short(telling[0]) if telling else "the library gives no reason"


def _short(error: str) -> str:
    """Without the place in the library's sources: ``[checkMacros.cpp::catchCudaError::250] Error Code 1: Cuda ...``."""
    text = " ".join(error.split())
    if text.startswith("["):
        text = text.partition("] ")[2] or text
    return text
