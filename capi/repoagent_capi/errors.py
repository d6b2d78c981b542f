"""Errors on their way between C and Python."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from repoagent.errors import ErrorCode, RepoAgentError, error_of
from repoagent_capi._crossing import ffi, lib

logger = logging.getLogger(__name__)

CROSSINGS: Final[set[str]] = set()
"""The functions of the table that are there."""


def as_text(text: Any) -> str:
    """A C string. What is not UTF-8 (a path may be anything) goes back as it came."""
    raw: bytes = ffi.string(text)
    return raw.decode("utf-8", "surrogateescape")


def as_bytes(text: str) -> bytes:
    """The inverse of :func:`as_text`."""
    return text.encode("utf-8", "surrogateescape")


def error_handle(error: BaseException) -> Any:
    """A new handle for an error."""
    code = error.code if isinstance(error, RepoAgentError) else ErrorCode.INTERNAL
    text = str(error) or type(error).__name__
    return lib.TRITONSERVER_ErrorNew(int(code), as_bytes(text))


def check(error: Any) -> None:
    """Raise what C returned, and delete it.

    Raises:
        RepoAgentError: it is an error.
    """
    if error == ffi.NULL:
        return
    code, text = lib.TRITONSERVER_ErrorCode(error), lib.TRITONSERVER_ErrorMessage(error)
    # A handle that is not an error has no text: the program made it up.
    message = as_text(text) if text != ffi.NULL else "an error was returned that is not a TRITONSERVER_Error"
    lib.TRITONSERVER_ErrorDelete(error)
    raise error_of(code, message)


def crossing(function: Callable[..., None]) -> Callable[..., None]:
    """Make ``function`` the one of its name in the table. What it raises becomes an error of C."""

    @wraps(function)
    def call(*arguments: Any) -> Any:
        try:
            function(*arguments)
        except RepoAgentError as error:
            return error_handle(error)
        except BaseException as error:
            logger.exception("%s failed unexpectedly", function.__name__)
            return error_handle(error)
        return ffi.NULL

    ffi.def_extern(name=f"python_{function.__name__}")(call)
    CROSSINGS.add(function.__name__)
    return function
