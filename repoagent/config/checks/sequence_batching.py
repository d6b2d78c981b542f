"""Rules on sequence batching: control tensors, strategies, slots."""

from collections.abc import Iterator
from typing import Final, TypeAlias

from repoagent.config.model_config_pb2 import (
    TYPE_INT32,
    TYPE_INT64,
    TYPE_STRING,
    TYPE_UINT32,
    TYPE_UINT64,
    ModelConfig,
    ModelSequenceBatching,
)

__all__ = ["problems"]

_Control: TypeAlias = ModelSequenceBatching.Control
_VALUE_FIELDS: Final = ("int32_false_true", "fp32_false_true", "bool_false_true")
_CORRELATION_TYPES: Final = (TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32, TYPE_STRING)


def problems(config: ModelConfig, name: str) -> Iterator[str]:
    """Problems of ``sequence_batching``, if the model has it."""
    if not config.HasField("sequence_batching"):
        return
    batching = config.sequence_batching
    yield from _tensor_problems(batching, name)
    for label, kind in _Control.Kind.items():
        yield from _kind_problems(batching, label, kind, name)
    yield from _strategy_problems(batching, config.max_batch_size, name)


def _tensor_problems(batching: ModelSequenceBatching, name: str) -> Iterator[str]:
    seen: set[str] = set()
    for tensor in batching.control_input:
        if not tensor.name:
            yield f"sequence batching control tensor must have a name for {name}"
        elif tensor.name in seen:
            yield f"sequence batching control tensor '{tensor.name}' is specified for multiple control kinds for {name}"
        seen.add(tensor.name)


def _kind_problems(batching: ModelSequenceBatching, label: str, kind: int, name: str) -> Iterator[str]:
    controls = [control for tensor in batching.control_input for control in tensor.control if control.kind == kind]
    if len(controls) > 1:
        yield f"sequence batching specifies multiple {label} tensors for {name}"
    for control in controls:
        if kind == _Control.CONTROL_SEQUENCE_CORRID:
            yield from _correlation_problems(control, label, name)
        else:
            yield from _value_problems(control, label, name)


def _value_problems(control: _Control, label: str, name: str) -> Iterator[str]:
    given = [field for field in _VALUE_FIELDS if getattr(control, field)]
    if not given:
        yield (
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' "
            f"for {label} for {name}"
        )
    elif len(given) > 1:
        yield (
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
            f"'bool_false_true' for {label} for {name}"
        )
    elif len(getattr(control, given[0])) != 2:
        yield f"sequence batching control '{given[0]}' must have exactly 2 entries for {label} for {name}"


def _correlation_problems(control: _Control, label: str, name: str) -> Iterator[str]:
    if any(getattr(control, field) for field in _VALUE_FIELDS):
        yield (
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' "
            f"for {label} for {name}"
        )
    elif control.data_type not in _CORRELATION_TYPES:
        yield (
            f"unexpected data type for control {label} for {name}. Allowed data types are TYPE_UINT64, TYPE_INT64, "
            "TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )


def _strategy_problems(batching: ModelSequenceBatching, max_batch_size: int, name: str) -> Iterator[str]:
    sizes = batching.oldest.preferred_batch_size
    if any(size <= 0 for size in sizes):
        yield f"sequence batching preferred batch size must be positive for {name}"
    if any(size > max_batch_size for size in sizes):
        yield f"sequence batching preferred batch size must be <= max batch size for {name}"
    # 0 is the default and allowed, whatever the text says: it is Triton's.
    if not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
        yield f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {name}"
