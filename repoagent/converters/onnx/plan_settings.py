"""What a plan is to be built by: from options, and from what the configuration states of tensors."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from repoagent.config import ModelConfig
from repoagent.converters.option_values import number, truth
from repoagent.engines.builder.profiles import BatchRange, GivenProfile, PlanSettings
from repoagent.errors import InvalidArgumentError

_MOST_PROFILES: Final = 64
_MOST_SHAPES: Final = 1 << 14
_MOST_WORKSPACE: Final = 1 << 50
_SHAPE: Final = re.compile(r"\d{1,12}(x\d{1,12}){0,15}")
_CAPABILITY: Final = re.compile(r"(\d{1,2})\.?(\d)")
_WHAT: Final = "NAME:1x3x224x224,OTHER:1x8, with ';' between profiles"


def plan_settings(config: ModelConfig | None, options: Mapping[str, str]) -> PlanSettings:
    """The settings for one version. Raises ``InvalidArgumentError`` if an option has no sensible value."""
    return builder_settings(
        options, batch=_batch(config), dims=_dims(config), samples=_samples(config), profiles=_profiles(options)
    )


def builder_settings(options: Mapping[str, str], **shapes: Any) -> PlanSettings:
    """The settings of any plan, and those of ``shapes``. Raises ``InvalidArgumentError`` if an option has no sensible
    value."""
    return PlanSettings(
        **shapes,
        workspace=number(options, "workspace", 1, _MOST_WORKSPACE),
        level=number(options, "optimization_level", 0, 5),
        tf32=truth(options, "tf32"),
        capabilities=_capabilities(options["compute_capabilities"]),
    )


def _batch(config: ModelConfig | None) -> BatchRange | None:
    if config is None or config.max_batch_size < 1:
        return None
    preferred = [size for size in config.dynamic_batching.preferred_batch_size if 0 < size <= config.max_batch_size]
    return BatchRange(max(preferred, default=config.max_batch_size), config.max_batch_size)


def _dims(config: ModelConfig | None) -> dict[str, Sequence[int]]:
    """Of every input by the name that the model has for it, as the model sees it."""
    if config is None:
        return {}
    dims: dict[str, Sequence[int]] = {
        one.name: list(one.reshape.shape if one.HasField("reshape") else one.dims) for one in config.input
    }
    dims.update({one.input_name: list(one.dims) for one in config.sequence_batching.state})
    return dims


def _samples(config: ModelConfig | None) -> dict[str, Sequence[Sequence[int]]]:
    """The dims of inputs in warm-up samples, in the order of size of the samples' names."""
    found: dict[str, list[list[int]]] = {}
    if config is not None:
        for sample in config.model_warmup:
            for name, one in sorted(sample.inputs.items()):
                found.setdefault(name, []).append(list(one.dims))
    return {name: sorted(dims) for name, dims in found.items()}


def _profiles(options: Mapping[str, str]) -> list[GivenProfile]:
    names = ("min_shapes", "opt_shapes", "max_shapes")
    given = [options.get(name) for name in names]
    if not any(given):
        return []
    parts = [_shapes(name, text or "") for name, text in zip(names, given, strict=True)]
    if len({len(part) for part in parts}) > 1:
        counts = ", ".join(f"{name} {len(part)}" for name, part in zip(names, parts, strict=True))
        raise InvalidArgumentError(f"the numbers of profiles differ: {counts}")
    profiles: list[GivenProfile] = []
    for index, (least, best, most) in enumerate(zip(*parts, strict=True)):
        if not least.keys() == best.keys() == most.keys():
            raise InvalidArgumentError(f"profile {index}: {', '.join(names)} must have the same inputs")
        profiles.append({name: (least[name], best[name], most[name]) for name in least})
    return profiles


def _shapes(option: str, text: str) -> list[dict[str, tuple[int, ...]]]:
    profiles = text.split(";")
    if len(profiles) > _MOST_PROFILES:
        raise InvalidArgumentError(f"parameter '{option}': {len(profiles)} profiles are more than {_MOST_PROFILES}")
    if text.count(",") > _MOST_SHAPES:
        raise InvalidArgumentError(f"parameter '{option}': {text.count(',')} shapes are more than {_MOST_SHAPES}")
    return [dict(_shape(option, item) for item in profile.split(",")) for profile in profiles]


def _shape(option: str, item: str) -> tuple[str, tuple[int, ...]]:
    # Names of tensors may have colons in them: the last one counts.
    name, _, sizes = item.strip().rpartition(":")
    if not name or not _SHAPE.fullmatch(sizes):
        raise InvalidArgumentError(f"parameter '{option}': '{item.strip()}' is not a shape; expected {_WHAT}")
    return name, tuple(int(size) for size in sizes.split("x"))


def _capabilities(text: str) -> list[str]:
    if text == "all":
        return []
    if text == "current":
        return [text]
    found = []
    for item in text.split(","):
        match = _CAPABILITY.fullmatch(item.strip())
        if match is None:
            raise InvalidArgumentError(
                f"parameter 'compute_capabilities': '{item.strip()}' is not a compute capability; "
                "expected all, current, or a list such as 8.6,8.9"
            )
        found.append(f"{match[1]}.{match[2]}")
    return sorted(set(found), key=lambda one: [int(part) for part in one.split(".")])
