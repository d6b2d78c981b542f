"""Which model some code belongs to, and what that model may ask of the server."""

import functools
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, ParamSpec, Protocol, TypeVar

from repoagent.errors import ErrorCode, RepoAgentError, error_of
from repoagent.public_text import writable
from repoagent.serving.requests.request import InferRequest

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


class CoreAccess(Protocol):
    """What a Python model may ask of the server that it runs in."""

    def submit(self, request: InferRequest) -> None:
        """Answer ``request`` through its sender."""

    def cancel(self, request: InferRequest) -> None:
        """Give up a request that was submitted; it is still answered."""

    def load(self, name: str, *, config: str | None = None, files: Mapping[str, bytes] | None = None) -> object:
        """Load a model; raises a RepoAgentError."""

    def unload(self, name: str, *, unload_dependents: bool = False, wait: bool = True) -> None:
        """Unload a model; without ``wait`` return as soon as no new request reaches it."""

    def model_ready(self, name: str, version: str = "") -> bool:
        """Whether the model answers requests."""


@dataclass(frozen=True, slots=True)
class ModelContext:
    """The model whose code runs. ``model_dir`` is the directory of the version that is loaded."""

    model_name: str
    model_version: str
    model_dir: Path
    core: CoreAccess


running: Final[ContextVar[ModelContext]] = ContextVar("repoagent_python_model")
"""Set while code of a model runs."""


def current() -> ModelContext:
    """The model that the calling thread works for; raises ``TritonModelException`` if there is none."""
    try:
        return running.get()
    except LookupError:
        raise TritonModelException(
            "the model that calls this is not known on this thread; import triton_python_backend_utils at the top of "
            "model.py rather than inside a function"
        ) from None


@contextmanager
def entered(context: ModelContext) -> Iterator[None]:
    """Run a block as the code of the model of ``context``."""
    token = running.set(context)
    try:
        yield
    finally:
        running.reset(token)


_LONGEST: Final = 10
"""Lines of the model that are shown; the innermost come first."""


def fault_text(error: BaseException, context: ModelContext, hint: str = "") -> str:
    """``NameError: name 'x' is not defined`` and, as in Triton, ``At:`` with file, line and function.

    Files are named below the model's directory. Frames of other files are left out: their paths are the server's.
    """
    root = context.model_dir.parent.resolve()
    lines = []
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).resolve()
        if path.is_relative_to(root):
            lines.append(f"  {path.relative_to(root)}({frame.lineno}): {frame.name}\n")
    at = "\n\nAt:\n" + "".join(lines[:_LONGEST]) if lines else ""
    if isinstance(error, ModuleNotFoundError) and _lies_beside(error.name or "", context.model_dir):
        hint += " (in process, only import statements of the model's own files find it: set EXECUTION to 'process')"
    return writable(f"{type(error).__name__}: {_text(error)}{hint}{at}")


def _lies_beside(module: str, version: Path) -> bool:
    """Whether it is a file or a directory of the model, which code in a process of its own always finds."""
    root = module.partition(".")[0]
    return bool(root) and any(
        (place / name).exists() for place in (version, version.parent) for name in (root, f"{root}.py")
    )


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:  # Also that is the model's code, or a number with too many digits.
        return f"({type(failure).__name__} where its text was made)"
