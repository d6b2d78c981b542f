"""The log of the process in Triton's form. As in Triton there is one, whatever the number of servers.

It is a handler on the logger ``repoagent`` of the standard library, which keeps the settings. Records also go where
the program's own handlers send them.
"""

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TextIO

from repoagent.errors import InvalidArgumentError
from repoagent.server.enums import LogFormat, LogLevel

_UNSEEN: Final = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""What JSON leaves as it is although it ends lines, steers terminals or turns the direction of text."""


def one_line(value: object) -> str:
    """``value`` as JSON on one line, without characters that act on what shows the line."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))


class JsonFormatter(logging.Formatter):
    """One object per line: ``timestamp`` (UTC), ``level``, ``logger``, ``process``, ``thread``, ``file``, ``line``,
    ``message``, and ``exception`` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
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


LogCallback = Callable[[LogLevel, str, int, int, str], None]
"""Takes a record: level, file name, line, microseconds since 1970, message (with the traceback, if it has one)."""

_LOGGER: Final = "repoagent"
_PLAIN: Final = logging.Formatter()
_LETTERS: Final = {logging.CRITICAL: "E", logging.ERROR: "E", logging.WARNING: "W", logging.INFO: "I"}
_LEVELS: Final = {
    LogLevel.INFO: logging.INFO,
    LogLevel.WARN: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
    LogLevel.VERBOSE: logging.DEBUG,
}


class TritonFormatter(logging.Formatter):
    """``I1121 10:00:00.123456 4711 server.py:42] "message"``, or with an ISO 8601 stamp in front.

    The message, with its traceback, is a JSON string: what clients and models send cannot look like further lines.
    Tables, whose records have ``extra={"table": True}``, stand as they are.
    """

    def __init__(self, log_format: LogFormat = LogFormat.DEFAULT) -> None:
        super().__init__()
        self.log_format = log_format

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        if not getattr(record, "table", False):
            message = one_line(message)
        return f"{self._head(record)} {record.process} {record.filename}:{record.lineno}] {message}"

    def _head(self, record: logging.LogRecord) -> str:
        letter = _LETTERS.get(record.levelno, "V")
        if self.log_format is LogFormat.ISO8601:
            return f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(record.created))} {letter}"
        stamp = time.strftime("%m%d %H:%M:%S", time.localtime(record.created))
        return f"{letter}{stamp}.{int(record.created % 1 * 1e6):06d}"


#: The forms of a line by name: Triton's two, and JSON objects.
FORMATS: Final[Mapping[str, Callable[[], logging.Formatter]]] = MappingProxyType(
    {
        "default": TritonFormatter,
        "ISO8601": partial(TritonFormatter, LogFormat.ISO8601),
        "json": JsonFormatter,
    }
)
_FORMAT_NAMES: Final = MappingProxyType({LogFormat.DEFAULT: "default", LogFormat.ISO8601: "ISO8601"})


class ServerLog(logging.Handler):
    """The settings, each of which acts at once, and the place where the lines go."""

    def __init__(self) -> None:
        super().__init__()
        self._loggers: list[logging.Logger] = []
        self.path = ""
        """The file that is written to; empty for the standard error."""
        self._file: TextIO | None = None
        self._failing = False
        self._callback: LogCallback | None = None
        self._inside = threading.local()
        self._enabled = dict.fromkeys(LogLevel, False)
        self.verbose = 0
        self.around: Callable[[], AbstractContextManager[object]] = nullcontext
        """What a line on the standard error is written within."""
        self.set_format(LogFormat.DEFAULT)

    @property
    def format_name(self) -> str:
        """Which of :data:`FORMATS` a line has."""
        return self._format_name

    def attach(self, name: str) -> None:
        """Take what is logged under ``name``, too."""
        logger = logging.getLogger(name)
        if logger not in self._loggers:
            self._loggers.append(logger)
            logger.addHandler(self)
            logger.setLevel(self._lowest())

    def detach(self) -> None:
        """Take nothing any more, and close the file."""
        for logger in self._loggers:
            logger.removeHandler(self)
            logger.setLevel(logging.NOTSET)
        self._loggers = []
        self.set_callback(None)
        self.set_file(None)

    def enabled(self, level: LogLevel) -> bool:
        """Whether messages of ``level`` are written."""
        return self._enabled[level]

    def enable(self, level: LogLevel, on: bool) -> None:
        """Write messages of ``level``, or do not."""
        self._enabled[level] = on
        for logger in self._loggers:
            logger.setLevel(self._lowest())

    def _lowest(self) -> int:
        return min((_LEVELS[each] for each, enabled in self._enabled.items() if enabled), default=logging.NOTSET)

    def set_verbose(self, level: int) -> None:
        """Write verbose messages if ``level`` is above 0."""
        self.verbose = level
        self.enable(LogLevel.VERBOSE, level > 0)

    def set_format(self, log_format: LogFormat | str) -> None:
        """Choose the form of a line, by Triton's enumeration or by one of the names in :data:`FORMATS`."""
        self._format_name = log_format if isinstance(log_format, str) else _FORMAT_NAMES[log_format]
        self.setFormatter(FORMATS[self._format_name]())

    def set_file(self, path: str | None) -> None:
        """Append to a file; nothing or an empty text is the standard error again.

        Raises:
            OSError: the file cannot be opened.
        """
        opened = Path(path).open("a", encoding="utf-8", errors="backslashreplace") if path else None  # noqa: SIM115 - open until the next call
        self.acquire()
        try:
            old, self._file = self._file, opened
            self.path = path or ""
        finally:
            self.release()
        if old is not None:
            with suppress(OSError):  # What was left to be written cannot be; that has been reported.
                old.close()

    def set_callback(self, callback: LogCallback | None) -> None:
        """Hand records to ``callback`` instead of writing lines, on the thread that logs; None writes lines again."""
        self._callback = callback

    def handle(self, record: logging.LogRecord) -> bool:
        """Not under the handler's lock if there is a callback: it may wait for a thread that logs as well."""
        callback = self._callback
        if callback is None:
            return super().handle(record)
        if self.filter(record) and self._enabled[_level_of(record)] and not getattr(self._inside, "callback", False):
            self._hand_over(callback, record)
        return True

    def _hand_over(self, callback: LogCallback, record: logging.LogRecord) -> None:
        self._inside.callback = True  # What a callback logs here itself would come back to it.
        try:
            text = record.getMessage()
            if record.exc_info:
                text += "\n" + _PLAIN.formatException(record.exc_info)
            callback(_level_of(record), record.filename, record.lineno, int(record.created * 1e6), text)
        except Exception:
            self.handleError(record)
        finally:
            self._inside.callback = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._enabled[_level_of(record)]:
                self._write(self.format(record) + "\n")
        except Exception:  # A log must not bring down what it reports on; logging's own rule for handlers.
            self.handleError(record)

    def _write(self, line: str) -> None:
        stream = self._file
        if stream is None:
            self._say(line)
            return
        try:
            stream.write(line)
            stream.flush()
            self._failing = False
        except OSError as error:
            self._complain(error)

    def _complain(self, error: OSError) -> None:
        """Report once that nothing can be written, until something can: a full disk should not fill the screen."""
        if not self._failing:
            self._failing = True
            self._say(f"cannot write to the log file '{self.path}', its lines are lost: {error.strerror}\n")

    def _say(self, line: str) -> None:
        with self.around():
            sys.stderr.write(line)
            sys.stderr.flush()


def _level_of(record: logging.LogRecord) -> LogLevel:
    for level in (LogLevel.ERROR, LogLevel.WARN, LogLevel.INFO):
        if record.levelno >= _LEVELS[level]:
            return level
    return LogLevel.VERBOSE


def server_log() -> ServerLog:
    """The log of this process; made and attached at the first call."""
    logger = logging.getLogger(_LOGGER)
    for handler in logger.handlers:
        if isinstance(handler, ServerLog):
            return handler
    log = ServerLog()
    log.attach(_LOGGER)
    return log


def open_log_file(path: str | None) -> None:
    """Write the log of this process to the file at ``path``; nothing or an empty text is the standard error.

    Raises:
        InvalidArgumentError: it cannot be opened.
    """
    try:
        server_log().set_file(path)
    except OSError as error:
        raise InvalidArgumentError(f"cannot open the log file '{path}': {error.strerror}") from error


def log_message(level: LogLevel, filename: str, line: int, message: str) -> None:
    """Write a message under a place of the caller's choice."""
    server_log()
    logger = logging.getLogger(_LOGGER)
    number = _LEVELS[level]
    if logger.isEnabledFor(number):
        logger.handle(logger.makeRecord(_LOGGER, number, filename, line, message, (), None))


def LogMessage(level: LogLevel, message: str) -> None:  # noqa: N802 - Triton's name
    """Write a message under the caller's file and line."""
    caller = sys._getframe(1)
    log_message(level, Path(caller.f_code.co_filename).name, caller.f_lineno, message)
