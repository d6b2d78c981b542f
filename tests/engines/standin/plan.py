"""The stand-in's plans: an ONNX model with what a builder would have been given."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from repoagent.engines.protocol import Profile, ShapeRange
from repoagent.errors import InvalidArgumentError
from repoagent.nested_text import read_json

_MAGIC: Final = b"rasi"
_HEAD: Final = struct.Struct("<4sI")


@dataclass(frozen=True, slots=True)
class StandInPlan:
    """What a plan of the stand-in holds."""

    model: bytes
    """The ONNX model; weights in it."""
    profiles: Sequence[Profile] = ()
    """At least one where a dimension of an input varies."""
    on_host: frozenset[str] = frozenset()
    """Inputs and outputs that are shape tensors."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Outputs that share the memory of an input."""

    def to_bytes(self) -> bytes:
        """The file."""
        fields = {
            "profiles": [{"shapes": _ranges(one.shapes), "values": _ranges(one.values)} for one in self.profiles],
            "on_host": sorted(self.on_host),
            "aliases": dict(self.aliases),
        }
        text = json.dumps(fields).encode()
        return _HEAD.pack(_MAGIC, len(text)) + text + self.model

    @classmethod
    def of(cls, plan: Any) -> "StandInPlan":
        """Read a file's contents.

        Raises:
            InvalidArgumentError: it is something else.
        """
        data = bytes(plan)
        if data[:4] != _MAGIC or len(data) < _HEAD.size:
            raise InvalidArgumentError("not a plan of the stand-in, which runs no others")
        _, length = _HEAD.unpack_from(data)
        try:
            fields = read_json(data[_HEAD.size : _HEAD.size + length])
            profiles = [Profile(_from(one["shapes"]), _from(one["values"])) for one in fields["profiles"]]
            return cls(data[_HEAD.size + length :], profiles, frozenset(fields["on_host"]), {**fields["aliases"]})
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidArgumentError(f"the stand-in's plan is damaged: {error}") from error


def _ranges(ranges: Mapping[str, ShapeRange]) -> dict[str, Any]:
    return {name: [list(one.least), list(one.best), list(one.most)] for name, one in ranges.items()}


def _from(ranges: Mapping[str, Any]) -> dict[str, ShapeRange]:
    return {name: ShapeRange(*(tuple(map(int, part)) for part in one)) for name, one in ranges.items()}
