"""Log records of a model's process, in the server's log: under names of their own, whatever they call themselves."""

import logging
from typing import Any, Final

from repoagent.public_text import writable
from repoagent.serving.backends.python.process.memory import ProtocolError

__all__ = ["log_record"]

_models: Final = logging.getLogger("repoagent.models")
_LONGEST_NAME: Final = 200
_LONGEST_PATH: Final = 4096
_LONGEST_TEXT: Final = 1 << 16
_MOST_LINES: Final = 1 << 31


def log_record(model_name: str, body: Any) -> None:
    """Log what the process says.

    All goes to the logger of models: a logger is kept for good, and another one would write as someone else.

    Raises:
        ProtocolError: it is not a log record.
    """
    try:
        name, level, path, line, text = body
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"a log record cannot be read: {error}") from error
    if not (
        all(type(number) is int for number in (level, line)) and all(type(one) is str for one in (name, path, text))
    ):
        raise ProtocolError("a log record is made of two numbers and three texts")
    level = max(logging.NOTSET, min(level, logging.CRITICAL))  # Each level that is asked for is kept, too.
    if not _models.isEnabledFor(level):
        return
    text = _plain(text, _LONGEST_TEXT)
    if name != _models.name:
        if not logging.getLogger().isEnabledFor(level):
            return
        name = f"{_models.name}.{_plain(name, _LONGEST_NAME)}"
        text = f"model '{model_name}', {name.removeprefix(_models.name + '.')}: {text}"
    line = max(0, min(line, _MOST_LINES))
    _models.handle(_models.makeRecord(name, level, _plain(path, _LONGEST_PATH), line, "%s", (text,), None))


def _plain(text: str, longest: int) -> str:
    """``text`` as any log file can hold it."""
    cut = text if len(text) <= longest else f"{text[:longest]} ..."
    return writable(cut)
