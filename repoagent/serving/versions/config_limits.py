"""Numbers of a configuration that would take memory or time before a single request comes: held to the limits."""

import math
from collections.abc import Iterator
from typing import Any

from repoagent.config import ModelConfig
from repoagent.errors import InvalidArgumentError
from repoagent.limits import Limits
from repoagent.serving.measuring.latencies import FIRST_RESPONSE
from repoagent.serving.requests.tensor import NUMPY_TYPES, DataType


def meaningless_settings(config: ModelConfig) -> Iterator[str]:
    """The settings in ``config`` that nothing goes by, except perhaps a backend of the operator's own.

    None of them changes an answer. An accelerator that ``convert`` went by is in the configuration no more.
    """
    optimization = config.optimization
    groups = config.instance_group
    found = {
        "optimization.execution_accelerators": optimization.HasField("execution_accelerators"),
        "optimization.cuda": optimization.HasField("cuda") and not _runs_plans(config),
        "model_operations": bool(config.model_operations.op_library_filename),
        "runtime": bool(config.runtime),
        "instance_group.secondary_devices": any(group.secondary_devices for group in groups),
        "instance_group.passive": any(group.passive for group in groups),
        "instance_group.host_policy": any(group.host_policy for group in groups),
    }
    yield from (name for name, given in found.items() if given)
    families = (control.metric_identifier.family for control in config.model_metrics.metric_control)
    yield from (f"model_metrics of family '{family}'" for family in families if family != FIRST_RESPONSE)


def _runs_plans(config: ModelConfig) -> bool:
    """Whether TensorRT executes the model: its backend uses the settings for CUDA."""
    return config.backend == "tensorrt" or (not config.backend and config.platform == "tensorrt_plan")


def check_limits(config: ModelConfig, limits: Limits) -> None:
    """Raise ``InvalidArgumentError`` if a complete configuration asks for more than ``limits`` allow: what is too much,
    what is allowed, and the flag."""
    for field, what, asked in _demands(config):
        allowed = getattr(limits, field)
        if asked > allowed:
            raise InvalidArgumentError(
                f"model '{config.name}' asks for {asked} {what}; {allowed} are allowed ({Limits.flag(field)})"
            )


def _demands(config: ModelConfig) -> Iterator[tuple[str, str, int]]:
    """Limit, what it counts here, and how much of it is asked for."""
    instances = sum(group.count * max(1, len(group.gpus)) for group in config.instance_group)
    yield "instances", "instances", instances
    if config.HasField("sequence_batching"):
        slots = config.sequence_batching.oldest.max_candidate_sequences or max(1, config.max_batch_size)
        yield "sequence_slots", "sequences at once", slots * max(1, instances)
    for sample in config.model_warmup:
        batch = max(1, sample.batch_size) if config.max_batch_size else 1
        yield "warmup_requests", f"requests of the warm-up sample '{sample.name}'", max(1, sample.count)
        for name, item in sample.inputs.items():
            what = f"bytes of the input '{name}' of the warm-up sample '{sample.name}'"
            yield "tensor_bytes", what, batch * _bytes(item)
    for state in config.sequence_batching.state:
        for initial in state.initial_state:
            yield "tensor_bytes", f"bytes of the initial state of '{state.input_name}'", _bytes(initial)


def _bytes(item: Any) -> int:
    """How much memory a tensor takes, negative dimensions apart, which are refused elsewhere."""
    kind = NUMPY_TYPES.get(DataType(item.data_type))
    size = kind.itemsize if kind is not None else 1
    count: int = math.prod(max(0, dim) for dim in item.dims)
    return count * size
