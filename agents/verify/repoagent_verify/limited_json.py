"""JSON from files that anyone may have written: bounded, without duplicate members, with errors that name the file."""

from typing import Any, Final, TypeVar

from repoagent.api import read_json as parse_json
from repoagent_verify.errors import VerificationError

__all__ = ["LARGEST_SIGNATURE", "member", "read_json"]

_Kind = TypeVar("_Kind")

LARGEST_SIGNATURE: Final = 64 << 20
"""Bytes of a signature file. A million files need about 150 MB, a thousand 150 kB."""


def read_json(data: bytes, what: str, *, most: int = 0) -> dict[str, Any]:
    """The JSON object in ``data``.

    Args:
        data: What to parse.
        what: What to call it in a message.
        most: How many values it may have, about. Parsing millions of them stops every thread of the server for many
            seconds, so what nobody has vouched for yet needs a limit.

    Raises:
        VerificationError: ``data`` is not a JSON object in UTF-8, is nested too deeply, names a member twice, or has
            too many values.
    """
    try:
        document = parse_json(
            data.decode(), most_values=most, object_pairs_hook=_unique_members, parse_constant=_no_constant
        )
    except ValueError as error:
        raise VerificationError(f"{what} is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise VerificationError(f"{what} is not a JSON object")
    return document


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member occurs twice")
    return members


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def member(document: dict[str, Any], name: str, kind: type[_Kind], what: str) -> _Kind:
    """Member ``name`` of ``document``, which must be of ``kind``.

    Raises:
        VerificationError: there is none, or it is of another kind.
    """
    value = document.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise VerificationError(f"{what} has no member '{name}' of type {kind.__name__}")
    return value
