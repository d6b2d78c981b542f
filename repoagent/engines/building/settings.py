"""What a plan is built by: values that JSON has, made where the configuration is known and read where it is built."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["BatchRange", "GivenProfile", "PlanSettings", "Range"]

Range = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Least, best and most."""
GivenProfile = Mapping[str, Range]
"""Of each input that varies."""


@dataclass(frozen=True, slots=True)
class BatchRange:
    """The first dimension of every input: from 1 to ``most``; kernels are chosen for ``best``."""

    best: int
    most: int


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """Everything that a plan depends on, besides the model and the library."""

    batch: BatchRange | None = None
    """None: the first dimension is like any other."""
    dims: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """What the configuration states of inputs, without the batch; -1 varies."""
    samples: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    """Dims of inputs in warm-up samples, without the batch."""
    profiles: Sequence[GivenProfile] = ()
    """Given ones; the rest above is then not looked at."""
    symbols: Sequence[Mapping[str, tuple[int, int, int]]] = ()
    """Profiles by the names that the model has for its dimensions: least, best and most of each."""
    workspace: int | None = None
    """Bytes of device memory that kernels may use; None: all."""
    level: int | None = None
    """0 to 5: how long the builder looks for better kernels."""
    tf32: bool = True
    capabilities: Sequence[str] = ()
    """Compute capabilities such as ``8.9``, or ``current``; none given: all that the library knows."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "PlanSettings":
        """The inverse of :meth:`to_json`."""
        batch = values["batch"]
        profiles = [{name: _range(given) for name, given in profile.items()} for profile in values["profiles"]]
        symbols = [{name: tuple(sizes) for name, sizes in one.items()} for one in values["symbols"]]
        made = {"batch": BatchRange(**batch) if batch else None, "profiles": profiles, "symbols": symbols}
        return cls(**{**values, **made})


def _range(given: Sequence[Sequence[int]]) -> Range:
    least, best, most = (tuple(map(int, part)) for part in given)
    return least, best, most
