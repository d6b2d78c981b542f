"""Errors as a ``model.py`` makes and raises them."""

import functools
import threading
from collections.abc import Callable
from typing import ClassVar, ParamSpec, TypeVar

from repoagent.errors import ErrorCode, RepoAgentError, error_of
from repoagent.public_text import writable

P = ParamSpec("P")
T = TypeVar("T")


class TritonModelException(Exception):
    """A model may raise it; its text is the whole message."""

    def message(self) -> str:
        return str(self)


def raising_tritons(call: Callable[P, T]) -> Callable[P, T]:
    """``call`` with the server's errors, and those on the way to it, as the only exception that models know."""

    @functools.wraps(call)
    def checked(*args: P.args, **named: P.kwargs) -> T:
        try:
            return call(*args, **named)
        except (RepoAgentError, OSError) as error:
            text = error.message if isinstance(error, RepoAgentError) else f"{type(error).__name__}: {error}"
            raise TritonModelException(text) from error

    return checked


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
        try:
            self._code = ErrorCode(code)
        except ValueError:
            raise TritonModelException(
                f"{code!r} is not the code of a TritonError: use pb_utils.TritonError.*"
            ) from None

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code

    def __str__(self) -> str:
        return self._message


def core_error(error: TritonError) -> RepoAgentError:
    """The core's error of the same code and text."""
    return error_of(error.code(), writable(error.message()))


def let_interrupt_pass(error: BaseException) -> None:
    """Raise ``error`` again if someone interrupts the program, of which the main thread hears.

    Everything else that comes out of a model's code is the model's mistake, a SystemExit and a cancelled coroutine too.
    """
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error
