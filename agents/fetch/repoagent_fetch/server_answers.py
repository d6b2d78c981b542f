"""The JSON with which hubs and registries answer: its status, size and fields checked before anything uses it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from repoagent.api import (
    AgentModel,
    CancelledError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    WebAnswer,
    read_json,
)

_MOST_VALUES: Final = 500_000
"""Of one answer, about. The parser stops every thread of the server, and the smallest values are three bytes long."""


def check_cancelled(model: AgentModel, what: str) -> None:
    """Between two questions: a server may send on and on.

    Raises:
        CancelledError: no one waits for the load any more.
    """
    if model.cancelled:
        raise CancelledError(f"cancelled while {what} was listed")


def document(answer: WebAnswer, what: str) -> Any:
    """The JSON of an answer.

    Raises:
        NotFoundError: the server has no such thing.
        UnavailableError: it refuses, or fails.
        InvalidArgumentError: what it sends is not valid JSON, or has too many values.
    """
    if answer.status == 404:
        raise NotFoundError(f"there is no {what} (HTTP 404), or the credentials do not allow it")
    if answer.status in (401, 403):
        raise UnavailableError(
            f"access to {what} is refused (HTTP {answer.status}): give 'token', or other credentials"
        )
    if answer.status != 200:
        raise UnavailableError(f"{what} cannot be read: the server answers with HTTP {answer.status}")
    try:
        return read_json(answer.body, most_values=_MOST_VALUES)
    except ValueError as error:
        raise InvalidArgumentError(f"{what} is not valid JSON: {error}") from None


def field(value: object, name: str, what: str) -> Any:
    """``value[name]``.

    Raises:
        InvalidArgumentError: it is not there.
    """
    if not isinstance(value, Mapping) or name not in value:
        raise InvalidArgumentError(f"{what} has no {name!r}")
    return value[name]


def text(value: object, name: str, what: str) -> str:
    """A text in a document. Errors as in :func:`field`."""
    found = field(value, name, what)
    if not isinstance(found, str):
        raise InvalidArgumentError(f"{what}: {name!r} is not a text")
    return found


def number(value: object, name: str, what: str) -> int:
    """A size in a document. Errors as in :func:`field`."""
    found = field(value, name, what)
    if type(found) is not int or found < 0:
        raise InvalidArgumentError(f"{what}: {name!r} is not a size")
    return found


def items(value: object, what: str) -> Sequence[Any]:
    """A list.

    Raises:
        InvalidArgumentError: it is not one.
    """
    if not isinstance(value, list):
        raise InvalidArgumentError(f"{what} is not a list")
    return value
