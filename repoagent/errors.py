"""The errors of the project, each with a machine-readable code. This module imports nothing of the project.

The codes and their numbers are those of Triton's ``TRITONSERVER_Error_Code``; front ends map them to HTTP and gRPC.
"""

import enum
import errno
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import SequenceMatcher, get_close_matches
from typing import Any, ClassVar, Final

_CLOSE: Final = 0.7
_AS_CLOSE: Final = 0.06
"""By how much a name may be less like the one asked for than the closest, and still be what was meant."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x' or 'y'?"`` for the names of ``known`` closest to ``name``, or nothing if none is close."""
    matches = get_close_matches(name, list(known), n=3, cutoff=_CLOSE)
    if not matches:
        return ""
    likeness = [SequenceMatcher(None, match, name).ratio() for match in matches]
    meant = [f"'{match}'" for match, ratio in zip(matches, likeness, strict=True) if ratio >= likeness[0] - _AS_CLOSE]
    return f"; did you mean {' or '.join(meant)}?"


_TEXTS: Final = {"INVALID_ARG": "Invalid argument"}


class ErrorCode(enum.IntEnum):
    """What kind of failure an error is; numbers as in ``TRITONSERVER_Error_Code``."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

    @property
    def text(self) -> str:
        """As Triton writes it in reasons and logs: ``Invalid argument``."""
        return _TEXTS.get(self.name) or self.name.replace("_", " ").capitalize()


class RepoAgentError(Exception):
    """Base of every error that the project raises on purpose.

    A client sees ``str(error)`` without private paths (:mod:`repoagent.public_text`); a secret is in none.
    """

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN
    report: Any = None
    """The :class:`~repoagent.api.report.LoadReport` of the load that this error ended, where there is one."""

    @property
    def message(self) -> str:
        """The text of the error, without the name of its class."""
        return str(self)


class UnknownError(RepoAgentError):
    """Something failed in a way that has no better code."""


class InternalError(RepoAgentError):
    """The server, a backend or an agent failed; the request itself may have been fine."""

    code = ErrorCode.INTERNAL


class NotFoundError(RepoAgentError):
    """A model, version, file or plug-in that was named does not exist."""

    code = ErrorCode.NOT_FOUND


class InvalidArgumentError(RepoAgentError):
    """The caller gave something that can never work."""

    code = ErrorCode.INVALID_ARG


class PromptTooLongError(InvalidArgumentError):
    """A prompt is longer than the texts of its language model may be."""


class UnavailableError(RepoAgentError):
    """Not now: the server is stopping, a queue is full, a model is not ready."""

    code = ErrorCode.UNAVAILABLE


class OverloadedError(UnavailableError):
    """A queue is full: the same request may succeed in a moment."""


class StoreUnavailableError(UnavailableError):
    """A store, or a server that files come from, failed or did not answer: the same load may succeed later."""


class UnsupportedError(RepoAgentError):
    """Known, but not possible here; the message states what is missing."""

    code = ErrorCode.UNSUPPORTED


class AlreadyExistsError(RepoAgentError):
    """Two things claim the same name."""

    code = ErrorCode.ALREADY_EXISTS


class CancelledError(UnknownError):
    """The caller, or a shutdown, gave the work up."""

    code = ErrorCode.CANCELLED


class ConfigError(InvalidArgumentError):
    """A model configuration that cannot be read or makes no sense.

    ``source`` names the file (or ``"<override>"``); ``line`` and ``column`` count from 1 and are None where the
    fault has no single place.
    """

    def __init__(
        self, message: str, *, source: str | None = None, line: int | None = None, column: int | None = None
    ) -> None:
        self.source = source
        self.line = line
        self.column = column
        place = ":".join(str(part) for part in (source, line, column) if part is not None)
        super().__init__(f"{place}: {message}" if place else message)


class UnsafePathError(InvalidArgumentError):
    """A name that would lead out of the model's directory: ``..``, an absolute path, a link."""


class AgentError(InternalError):
    """An agent could not be found, imported, initialised, or refused the model."""

    def __init__(self, agent: str, message: str) -> None:
        self.agent = agent
        self.reason = message
        super().__init__(f"agent '{agent}': {message}")


class AgentNotFoundError(AgentError):
    """No installed package and no directory offers an agent of that name."""


class AgentRefusedError(AgentError):
    """The agent ran and raised: the model must not be loaded."""


class AgentUnsupportedError(AgentError):
    """The agent is there, but this program cannot run it; the message states what is missing."""

    code = ErrorCode.UNSUPPORTED


class InvalidTransitionError(InternalError):
    """A life-cycle step that may not follow the one before; the message names both states."""


def described(error: BaseException) -> str:
    """The kind of an error from elsewhere and its text; where it has none, that of what it was raised from."""
    text = next(filter(None, map(str, causes(error))), "no answer in time" if isinstance(error, TimeoutError) else "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def causes(error: BaseException) -> Iterator[BaseException]:
    """``error``, then what it was raised from, and so on; each once, as an error can be among its own causes."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        yield one
        seen.add(id(one))
        one = one.__cause__


_OF_CODE: Final[dict[int, type[RepoAgentError]]] = {
    kind.code: kind
    for kind in (
        UnknownError,
        InternalError,
        NotFoundError,
        InvalidArgumentError,
        UnavailableError,
        UnsupportedError,
        AlreadyExistsError,
        CancelledError,
    )
}


def error_of(code: int, message: str) -> RepoAgentError:
    """The plain error of a code: :class:`NotFoundError` for ``NOT_FOUND``, and so on."""
    return _OF_CODE[code](message)


def signal_name(number: int) -> str:
    """The name of a signal that ended a process; of one that has none, such as 40, its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


FULL_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def storage_faults(what: str, where: str) -> Iterator[None]:
    """Turn whatever a filesystem raises into ``NotFoundError`` or ``UnavailableError``, with the cause attached."""
    try:
        yield
    except RepoAgentError:
        raise
    except FileNotFoundError as error:
        raise NotFoundError(f"cannot {what} {where}: it does not exist") from error
    except NotADirectoryError as error:
        raise NotFoundError(f"cannot {what} {where}: it is not a directory") from error
    except PermissionError as error:
        raise UnavailableError(f"cannot {what} {where}: {described(error)}") from error
    except Exception as error:  # filesystem packages have no common base for "the server did not answer"
        raise StoreUnavailableError(f"cannot {what} {where}: {described(error)}") from error


@contextmanager
def full_disk(where: str, needed: int) -> Iterator[None]:
    """Turn "no space left" into ``UnavailableError``; ``needed`` is the size of all that was to be written."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        raise UnavailableError(f"no space left on {where} while writing {needed} bytes") from error
