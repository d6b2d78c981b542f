"""What Triton's ``optimization.execution_accelerators`` ask for, as parameters of this agent."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from repoagent.api import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    from repoagent.api import ModelConfig

__all__ = ["parameters_of"]

_TENSORRT: Final = "tensorrt"
_NAMES: Final[Mapping[str, str]] = {
    "max_workspace_size_bytes": "workspace",
    "trt_max_workspace_size": "workspace",
    "trt_builder_optimization_level": "optimization_level",
    "trt_profile_min_shapes": "min_shapes",
    "trt_profile_opt_shapes": "opt_shapes",
    "trt_profile_max_shapes": "max_shapes",
}
_WITHOUT_EFFECT: Final = frozenset(
    {"minimum_segment_size", "max_cached_engines", "trt_max_partition_iterations", "trt_min_subgraph_size"}
    | {"trt_engine_cache_enable", "trt_engine_cache_path", "trt_engine_cache_prefix"}
    | {"trt_timing_cache_enable", "trt_timing_cache_path"}
)
"""About parts of a model, and caches of a provider: here the whole model becomes one plan, and the plan is kept."""
_PRECISIONS: Final = frozenset({"precision_mode", "trt_fp16_enable", "trt_int8_enable", "trt_bf16_enable"})
_AS_IT_IS: Final = frozenset({"FP32", "false", "0"})


def parameters_of(config: "ModelConfig | None") -> dict[str, str]:
    """Those that stand for a GPU accelerator ``tensorrt``; none if the configuration does not name it.

    Raises:
        UnsupportedError: it asks for other numbers than the model has, which a strongly typed plan cannot have.
        InvalidArgumentError: it has a parameter that means nothing.
    """
    if config is None:
        return {}
    for one in config.optimization.execution_accelerators.gpu_execution_accelerator:
        if one.name == _TENSORRT:
            return {"to": _TENSORRT, **_translated(one.parameters)}
    return {}


def _translated(given: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, value in sorted(given.items()):
        if name in _PRECISIONS:
            if value not in _AS_IT_IS:
                raise UnsupportedError(
                    f"execution_accelerators: {name} '{value}' is not possible: plans are strongly typed, and have the "
                    "numbers of the model; convert the model itself"
                )
        elif name in _NAMES:
            found[_NAMES[name]] = value
        elif name not in _WITHOUT_EFFECT:
            known = ", ".join(sorted({*_NAMES, *_PRECISIONS, *_WITHOUT_EFFECT}))
            raise InvalidArgumentError(f"execution_accelerators: tensorrt has no parameter '{name}'; there are {known}")
    return found
