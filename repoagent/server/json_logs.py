"""Log lines as JSON objects, for collectors of logs."""

import json
import logging
import re
import time
from typing import Any, Final

__all__ = ["JsonFormatter", "one_line"]

_UNSEEN: Final = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""What JSON leaves as it is although it ends lines, steers terminals or turns the direction of text."""


def one_line(value: object) -> str:
    """``value`` as JSON on one line, without characters that act on what shows the line."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))


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
        return one_line(entry)
