"""Which profile a batch runs with."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Final

from repoagent.engines.protocol import Profile, Shape
from repoagent.errors import InvalidArgumentError

if TYPE_CHECKING:
    from repoagent.engines.cuda.engine import TensorRtEngine

_MOST_DIGITS: Final = 9
"""Of the number of a profile; Python refuses to read thousands of them."""


class Profiles:
    """The profiles of an engine that one instance uses, the tightest first."""

    def __init__(self, engine: "TensorRtEngine", names: Sequence[str] = ()) -> None:
        """``names``: ``instance_group.profile``; empty for all.

        Raises:
            InvalidArgumentError: the engine has no such profile.
        """
        count = len(engine.profiles)
        for name in names:
            if len(name) > _MOST_DIGITS or int(name) >= count:
                raise InvalidArgumentError(
                    f"instance_group names profile {name[:20]}, and the plan has {count}: 0 to {count - 1}"
                )
        self.indices = sorted(
            {int(name) for name in names} or range(count), key=lambda index: (_volume(engine.profiles[index]), index)
        )
        self._engine = engine

    def choose(self, shapes: Mapping[str, Shape], values: Mapping[str, Sequence[int]]) -> int:
        """The tightest profile that allows these shapes of inputs, and these values of shape tensors.

        Raises:
            InvalidArgumentError: none does; the message lists what each one allows.
        """
        for index in self.indices:
            if _allows(self._engine.profiles[index], shapes, values):
                return index
        given = ", ".join(f"'{name}' {list(one)}" for name, one in {**shapes, **values}.items())
        raise InvalidArgumentError(f"no profile of the plan allows the inputs {given}; {self._listed()}")

    def _listed(self) -> str:
        return "; ".join(f"profile {index} allows {_text(self._engine.profiles[index])}" for index in self.indices)


def _allows(profile: Profile, shapes: Mapping[str, Shape], values: Mapping[str, Sequence[int]]) -> bool:
    return all(one.allows(shapes[name]) for name, one in profile.shapes.items() if name in shapes) and all(
        one.allows(values[name]) for name, one in profile.values.items() if name in values
    )


def _volume(profile: Profile) -> int:
    return sum(prod(one.most) for one in profile.shapes.values()) + sum(
        sum(one.most) for one in profile.values.values()
    )


def _text(profile: Profile) -> str:
    ranges = [f"'{name}' {one}" for name, one in {**profile.shapes, **profile.values}.items()]
    return ", ".join(ranges) or "what the plan states"
