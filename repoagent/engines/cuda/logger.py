"""TensorRT's messages: to the log, and errors to the call that caused them."""

import logging
import threading

from repoagent.engines.bindings import trt

__all__ = ["TensorRtLog"]

logger = logging.getLogger(__name__)


class TensorRtLog(trt.ILogger):  # type: ignore[misc, unused-ignore]
    """Collects the errors of each thread. TensorRT calls it from threads of its own as well."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self._errors = threading.local()

    def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
        """Called by TensorRT. What is raised here is lost."""
        if severity in (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR):
            self._list().append(msg)
            logger.error("TensorRT: %s", msg)
        elif severity == trt.ILogger.Severity.WARNING:
            logger.warning("TensorRT: %s", msg)
        else:
            logger.debug("TensorRT: %s", msg)

    def _list(self) -> list[str]:
        errors: list[str] | None = getattr(self._errors, "list", None)
        if errors is None:
            errors = self._errors.list = []
        return errors

    def clear(self) -> None:
        """Forget the errors of the calling thread."""
        self._list().clear()

    def reason(self) -> str:
        """The first error of the calling thread since :meth:`clear`: those that follow are consequences."""
        errors = self._list()
        return errors[0] if errors else "TensorRT gave no reason"
