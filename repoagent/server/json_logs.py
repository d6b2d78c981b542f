"""Log lines as JSON objects, for collectors of logs."""

import json
import logging
import time
from typing import Any

__all__ = ["JsonFormatter"]


class JsonFormatter(logging.Formatter):
    """One object per line: ``timestamp`` (UTC), ``level``, ``logger``, ``process``, ``thread``, ``file``, ``line``,
    ``message``, and ``exception`` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """See :class:`logging.Formatter`."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, Any] = {
            "timestamp": f"{seconds}.{int(record.created % 1 * 1e6):06d}Z",
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "thread": record.threadName,
            "file": record.filename,
            "line": record.lineno,
            "message": record.getMessage().strip("\n"),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)
