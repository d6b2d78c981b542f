"""Which shapes a plan is built for. TensorRT builds nothing with a dimension that varies and no profile."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from repoagent.engines.protocol import Profile, ShapeRange
from repoagent.errors import InvalidArgumentError

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


_DEFAULT_BATCH: Final = 4
"""As Triton completes a configuration without max_batch_size."""
_MOST_SIZE: Final = (1 << 31) - 1
"""The bindings of the builder cut larger numbers to 32 bits, and build something else without a word."""
_ROW: Final = "give min_shapes, opt_shapes and max_shapes"


@dataclass(frozen=True, slots=True)
class NetworkInput:
    """An input as the parser found it; -1 varies. Of a shape tensor the values matter, not the shape."""

    name: str
    shape: tuple[int, ...]
    is_shape_tensor: bool = False
    names: tuple[str | None, ...] = ()
    """What the model calls its dimensions, where it does."""

    @property
    def varies(self) -> bool:
        """Whether a profile must have it."""
        return self.is_shape_tensor or -1 in self.shape


@dataclass(frozen=True, slots=True)
class Profiles:
    """The profiles, none for a network in which nothing varies, and what should be known of how they came about."""

    profiles: tuple[Profile, ...]
    notes: tuple[str, ...] = ()


def profiles_for(inputs: Sequence[NetworkInput], settings: PlanSettings) -> Profiles:
    """The profiles that were given, checked, or one made of the configuration. Raises ``InvalidArgumentError`` if
    nothing states how far a dimension varies, or a profile does not fit the model."""
    found = _found(inputs, settings)
    for index, profile in enumerate(found.profiles):
        for name, allowed in {**profile.shapes, **profile.values}.items():
            if any(abs(size) > _MOST_SIZE for part in (allowed.least, allowed.best, allowed.most) for size in part):
                raise InvalidArgumentError(
                    f"profile {index}: '{name}' {allowed} has a size beyond {_MOST_SIZE}, the largest for TensorRT"
                )
    return found


def _found(inputs: Sequence[NetworkInput], settings: PlanSettings) -> Profiles:
    if settings.symbols:
        varying = [one for one in inputs if one.varies]
        return Profiles(tuple(Profile({one.name: _named(one, sizes) for one in varying}) for sizes in settings.symbols))
    if settings.profiles:
        return Profiles(tuple(_checked(inputs, given, index) for index, given in enumerate(settings.profiles)))
    batch = settings.batch
    notes: tuple[str, ...] = ()
    if batch is None and _only_batches(inputs, settings):
        batch = BatchRange(_DEFAULT_BATCH, _DEFAULT_BATCH)
        notes = (f"no max_batch_size and no inputs in the configuration: built for batches of 1 to {_DEFAULT_BATCH}",)
    if batch is not None:
        for one in inputs:
            _check_batch(one, batch)
    varying = [one for one in inputs if one.varies]
    if not varying:
        return Profiles((), notes)
    shapes = {one.name: _derived(one, batch, settings) for one in varying}
    return Profiles((Profile(shapes),), notes)


def _named(one: NetworkInput, sizes: Mapping[str, tuple[int, int, int]]) -> ShapeRange:
    ranges = []
    for axis, size in enumerate(one.shape):
        name = one.names[axis] if axis < len(one.names) else None
        if size == -1 and name not in sizes:
            raise InvalidArgumentError(
                f"dimension {axis} of input '{one.name}' varies, and is none of {', '.join(sizes)}"
            )
        ranges.append((size, size, size) if size != -1 else sizes[str(name)])
    least, best, most = zip(*ranges, strict=True)
    return ShapeRange(least, best, most)


def _only_batches(inputs: Iterable[NetworkInput], settings: PlanSettings) -> bool:
    """Whether the first dimension of every input varies, no other one does, and no one has named the inputs."""
    shapes = [one.shape for one in inputs]
    return (
        not settings.dims
        and not settings.samples
        and all(shape and shape[0] == -1 and -1 not in shape[1:] for shape in shapes)
        and not any(one.is_shape_tensor for one in inputs)
    )


def _check_batch(one: NetworkInput, batch: BatchRange) -> None:
    if one.is_shape_tensor:
        return
    if not one.shape:
        raise InvalidArgumentError(f"input '{one.name}' has no dimension, but max_batch_size is {batch.most}")
    if one.shape[0] not in (-1, batch.most):
        raise InvalidArgumentError(
            f"the first dimension of input '{one.name}' is {one.shape[0]}, but max_batch_size is {batch.most}: export "
            "the model with a batch dimension that varies, or set max_batch_size to 0"
        )


def _derived(one: NetworkInput, batch: BatchRange | None, settings: PlanSettings) -> ShapeRange:
    if one.is_shape_tensor:
        raise InvalidArgumentError(
            f"input '{one.name}' is a shape tensor, and nothing states which values it takes: {_ROW}"
        )
    ranges = [_dimension(one, axis, batch, settings) for axis in range(len(one.shape))]
    least, best, most = zip(*ranges, strict=True)
    return ShapeRange(least, best, most)


def _dimension(one: NetworkInput, axis: int, batch: BatchRange | None, settings: PlanSettings) -> tuple[int, int, int]:
    """Least, best and most of one dimension."""
    size = one.shape[axis]
    if size != -1:
        return size, size, size
    if batch is not None and axis == 0:
        return 1, batch.best, batch.most
    place = axis - (batch is not None)
    stated = _at(settings.dims.get(one.name, ()), place)
    if stated > 0:
        return stated, stated, stated
    seen = sorted(size for dims in settings.samples.get(one.name, ()) if (size := _at(dims, place)) > 0)
    if not seen:
        raise InvalidArgumentError(
            f"dimension {axis} of input '{one.name}' varies, and nothing states how far: {_ROW}, fix it in dims, or "
            "add warm-up samples of the smallest and the largest size"
        )
    return seen[0], seen[-1], seen[-1]


def _at(dims: Sequence[int], place: int) -> int:
    return dims[place] if place < len(dims) else -1


def _checked(inputs: Sequence[NetworkInput], given: GivenProfile, index: int) -> Profile:
    known = {one.name: one for one in inputs}
    for name in given:
        if name not in known:
            raise InvalidArgumentError(
                f"profile {index} has shapes of '{name}', but the model's inputs are {', '.join(known)}"
            )
    missing = [one.name for one in inputs if one.varies and one.name not in given]
    if missing:
        raise InvalidArgumentError(f"profile {index} lacks shapes of {', '.join(missing)}, which vary")
    shapes: dict[str, ShapeRange] = {}
    values: dict[str, ShapeRange] = {}
    for name, wanted in given.items():
        one = known[name]
        if not one.varies:
            _check_fixed(one, wanted, index)
            continue
        (values if one.is_shape_tensor else shapes)[name] = _fitting(one, wanted, index)
    return Profile(shapes, values)


def _check_fixed(one: NetworkInput, given: Range, index: int) -> None:
    if any(part != one.shape for part in given):
        raise InvalidArgumentError(
            f"profile {index}: the shape of '{one.name}' is {_text(one.shape)} and does not vary"
        )


def _fitting(one: NetworkInput, given: Range, index: int) -> ShapeRange:
    least, best, most = given
    if not one.is_shape_tensor:
        fits = all(
            len(part) == len(one.shape)
            and all(fixed in (-1, size) and size >= 0 for fixed, size in zip(one.shape, part, strict=True))
            for part in given
        )
        if not fits:
            shown = ", ".join(map(_text, given))
            raise InvalidArgumentError(
                f"profile {index}: the shapes {shown} do not fit '{one.name}', which is {_text(one.shape)}"
            )
    ordered = len({len(part) for part in given}) == 1 and all(
        low <= middle <= high for low, middle, high in zip(least, best, most, strict=True)
    )
    if not ordered:
        raise InvalidArgumentError(
            f"profile {index}: of '{one.name}', the least shape must not exceed the best, nor that the most: "
            f"{', '.join(map(_text, given))}"
        )
    return ShapeRange(least, best, most)


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "a single value"


def to_json(profiles: Sequence[Profile]) -> list[Mapping[str, object]]:
    """As a plan's provenance has them."""
    return [{"shapes": _ranges(one.shapes), "values": _ranges(one.values)} for one in profiles]


def _ranges(ranges: Mapping[str, ShapeRange]) -> dict[str, list[list[int]]]:
    return {name: [list(one.least), list(one.best), list(one.most)] for name, one in ranges.items()}
