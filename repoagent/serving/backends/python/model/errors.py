"""Errors as a ``model.py`` makes and raises them."""

import threading
from typing import ClassVar

from repoagent.errors import ErrorCode, RepoAgentError, error_of

__all__ = ["TritonError", "TritonModelException", "core_error", "let_interrupt_pass", "writable"]


class TritonModelException(Exception):
    """A model may raise it; its text is the whole message."""

    def message(self) -> str:
        return str(self)


class TritonError:
    """The error of one response: a text and a code."""

    UNKNOWN: ClassVar[int] = ErrorCode.UNKNOWN
    INTERNAL: ClassVar[int] = ErrorCode.INTERNAL
    NOT_FOUND: ClassVar[int] = ErrorCode.NOT_FOUND
    INVALID_ARG: ClassVar[int] = ErrorCode.INVALID_ARG
    UNAVAILABLE: ClassVar[int] = ErrorCode.UNAVAILABLE
    UNSUPPORTED: ClassVar[int] = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS: ClassVar[int] = ErrorCode.ALREADY_EXISTS
    CANCELLED: ClassVar[int] = ErrorCode.CANCELLED

    def __init__(self, message: str, code: int = ErrorCode.INTERNAL) -> None:
        if not isinstance(message, str):
            raise TypeError(f"the message of a TritonError must be a str, not {type(message).__name__}")
        self._message = message
        self._code = ErrorCode(code)

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code

    def __str__(self) -> str:
        return self._message


def core_error(error: TritonError) -> RepoAgentError:
    """The core's error of the same code and text."""
    return error_of(error.code(), writable(error.message()))


def writable(text: str) -> str:
    """``text`` as every protocol can carry it: half a surrogate pair, which a ``str`` may have, is spelt out."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def let_interrupt_pass(error: BaseException) -> None:
    """Raise ``error`` again if someone interrupts the program, of which the main thread hears.

    Everything else that comes out of a model's code is the model's mistake, a SystemExit and a cancelled coroutine too.
    """
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error
