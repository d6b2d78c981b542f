"""The logger of a ``model.py``: Triton's names over Python's logging."""

import enum
import logging
from typing import Any, ClassVar

__all__ = ["LogLevel", "Logger"]

logger = logging.getLogger("repoagent.models")


class LogLevel(enum.Enum):
    """Levels by Triton's names; VERBOSE is Python's DEBUG."""

    INFO = logging.INFO
    WARNING = logging.WARNING
    ERROR = logging.ERROR
    VERBOSE = logging.DEBUG


class Logger:
    """Static methods that write to the server's log."""

    INFO: ClassVar[LogLevel] = LogLevel.INFO
    WARNING: ClassVar[LogLevel] = LogLevel.WARNING
    ERROR: ClassVar[LogLevel] = LogLevel.ERROR
    VERBOSE: ClassVar[LogLevel] = LogLevel.VERBOSE

    @staticmethod
    def log(message: Any, level: LogLevel = LogLevel.INFO) -> None:
        if not isinstance(level, LogLevel):
            raise TypeError(f"level must be a pb_utils.Logger level such as Logger.INFO, not {type(level).__name__}")
        logger.log(level.value, "%s", message, stacklevel=2)

    @staticmethod
    def log_info(message: Any) -> None:
        logger.info("%s", message, stacklevel=2)

    @staticmethod
    def log_warn(message: Any) -> None:
        logger.warning("%s", message, stacklevel=2)

    @staticmethod
    def log_error(message: Any) -> None:
        logger.error("%s", message, stacklevel=2)

    @staticmethod
    def log_verbose(message: Any) -> None:
        logger.debug("%s", message, stacklevel=2)
