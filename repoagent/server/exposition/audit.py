"""Metrics of the audit log: what an alert should look at."""

from collections.abc import Iterable

from repoagent.audit.log import AuditLog
from repoagent.server.exposition.text import Family

__all__ = ["AuditMetrics"]


class AuditMetrics:
    """Reads the counters of a log."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def families(self) -> Iterable[Family]:
        """Lines, failures, and notes that came too fast."""
        log = self._log
        return [
            _counter("repoagent_audit_lines_total", "Lines written to the audit log", log.lines),
            _counter(
                "repoagent_audit_failures_total", "Lines that could not be written to the audit log", log.failures
            ),
            _counter(
                "repoagent_audit_suppressed_total",
                "Denied requests without a line of their own in the audit log",
                log.suppressed,
            ),
        ]


def _counter(name: str, text: str, value: int) -> Family:
    return Family(name, "counter", text, [((), value)])
