"""What the statement beside a plan has of its tensors and profiles, for machines that cannot open the plan.

The statement comes with the model, so everything in it is checked: it describes, and nothing is allocated by it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from repoagent.engines.protocol import ElementType, Profile, Shape, ShapeRange, TensorSpec
from repoagent.errors import InvalidArgumentError
from repoagent.nested_text import read_json

STATEMENT_SUFFIX: Final = ".intoto.json"
"""Behind the name of the plan's file: an in-toto statement."""
MOST_BYTES: Final = 16 << 20
"""Of a statement."""


def check_digest(plan: Any, name: str, statement: bytes) -> None:
    """Refuse a plan that is not the one that was built.

    Args:
        plan: Its contents, a buffer.
        name: The name of its file.
        statement: The contents of the statement.

    Raises:
        InvalidArgumentError: the digests differ, or the statement has none for the plan.
    """
    stated = str(read_subject(statement, name)["digest"]["sha256"]).lower()
    found = hashlib.sha256(plan).hexdigest()
    if stated != found:
        raise InvalidArgumentError(
            f"{name} has changed since it was built: its digest is sha256:{found}, and {name}{STATEMENT_SUFFIX} states "
            f"sha256:{stated}; copy it again, or build it again"
        )


def read_subject(statement: bytes, name: str) -> Mapping[str, Any]:
    """What ``statement`` has of the file ``name``: at least a digest. Raises ``InvalidArgumentError`` if it is not a
    statement, or not one of this file."""
    try:
        if len(statement) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        subjects = read_json(statement)["subject"]
        found = [one for one in subjects if one["name"] == name and one["digest"]["sha256"]]
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidArgumentError(f"{name}{STATEMENT_SUFFIX} is not a valid statement: {error}") from error
    if len(found) != 1:
        raise InvalidArgumentError(f"{name}{STATEMENT_SUFFIX} states {len(found)} digests of {name}, expected one")
    subject: Mapping[str, Any] = found[0]
    return subject


_MOST_TENSORS: Final = 10_000
_MOST_PROFILES: Final = 1024
_MOST_AXES: Final = 16
_MOST_SIZE: Final = (1 << 31) - 1
_MOST_VALUE: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class PlanDescription:
    """The tensors and profiles that a plan was built with."""

    tensors: Sequence[TensorSpec]
    profiles: Sequence[Profile]

    @classmethod
    def of(cls, statement: bytes, name: str) -> "PlanDescription":
        """Of the plan ``name``; the digest is :func:`check_digest`'s to compare. Raises ``InvalidArgumentError`` if the
        statement has no tensors and profiles of this plan, or they make no sense."""
        try:
            annotations = read_subject(statement, name)["annotations"]
            tensors = [_tensor(one) for one in _list(annotations["tensors"], _MOST_TENSORS)]
            inputs = {one.name: one for one in tensors if one.is_input}
            if len({one.name for one in tensors}) != len(tensors):
                raise ValueError("two tensors have one name")
            if len(inputs) in (0, len(tensors)):
                raise ValueError("inputs or outputs are missing")
            profiles = [_profile(one, inputs) for one in _list(annotations["profiles"], _MOST_PROFILES)]
            return cls(tensors, profiles)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else error
            raise InvalidArgumentError(
                f"{name}{STATEMENT_SUFFIX} does not describe the inputs and outputs of {name}: {reason}"
            ) from error


def _tensor(body: Mapping[str, Any]) -> TensorSpec:
    name, element, alias = body["name"], body["element"], body.get("alias_of")
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ValueError("a tensor has no name that can be printed")
    if element not in ElementType.__members__:
        raise ValueError(f"tensor '{name}' has elements of an unknown type")
    if not isinstance(alias, str | None):
        raise TypeError(f"alias_of of tensor '{name}' is not a name")
    is_input, on_host = body["is_input"], body["on_host"]
    if not isinstance(is_input, bool) or not isinstance(on_host, bool):
        raise TypeError(f"is_input and on_host of tensor '{name}' must be true or false")
    return TensorSpec(name, is_input, ElementType[element], _shape(body["shape"], -1, _MOST_SIZE), on_host, alias)


def _profile(body: Mapping[str, Any], inputs: Mapping[str, TensorSpec]) -> Profile:
    shapes = {str(name): _range(sizes, 0, _MOST_SIZE) for name, sizes in body["shapes"].items()}
    values = {str(name): _range(sizes, -_MOST_VALUE, _MOST_VALUE) for name, sizes in body["values"].items()}
    for name in (*shapes, *values):
        if name not in inputs:
            raise ValueError(f"a profile has {name!r}, which is not an input")
    for name, one in shapes.items():
        if len(one.most) != len(inputs[name].shape):
            raise ValueError(f"a profile has another number of dimensions for '{name}'")
    return Profile(shapes, values)


def _range(body: Any, least: int, most: int) -> ShapeRange:
    low, best, high = (_shape(one, least, most) for one in _list(body, 3))
    if not len(low) == len(best) == len(high):
        raise ValueError("the shapes of a profile differ in their number of dimensions")
    return ShapeRange(low, best, high)


def _shape(body: Any, least: int, most: int) -> Shape:
    sizes = _list(body, _MOST_AXES)
    if not all(type(size) is int and least <= size <= most for size in sizes):
        raise ValueError("a shape has sizes that no tensor can have")
    return tuple(sizes)


def _list(body: Any, most: int) -> list[Any]:
    if not isinstance(body, list) or len(body) > most:
        raise TypeError(f"expected a list of at most {most} entries")
    return body
