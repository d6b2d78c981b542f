"""What an engine states about its tensors, in the terms of a model configuration."""

from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

from repoagent.config import ModelConfig
from repoagent.engines.protocol import ElementType, Profile, TensorSpec
from repoagent.errors import InvalidArgumentError, UnsupportedError
from repoagent.serving.backends.signatures import Signature, TensorInfo
from repoagent.serving.requests.tensor import DataType

DATA_TYPES: Final = MappingProxyType(
    {
        ElementType.FLOAT: DataType.FP32,
        ElementType.HALF: DataType.FP16,
        ElementType.BF16: DataType.BF16,
        ElementType.INT8: DataType.INT8,
        ElementType.UINT8: DataType.UINT8,
        ElementType.INT32: DataType.INT32,
        ElementType.INT64: DataType.INT64,
        ElementType.BOOL: DataType.BOOL,
    }
)


_MOST_BATCH: Final = (1 << 31) - 1
"""What max_batch_size can hold."""


class Describing(Protocol):
    """An engine, or what describes one that cannot be opened here."""

    @property
    def tensors(self) -> Sequence[TensorSpec]: ...

    @property
    def profiles(self) -> Sequence[Profile]: ...


def signature_of(engine: Describing, *, batching: bool) -> Signature:
    """The inputs and outputs of ``engine``.

    Of a model that batches, a shape tensor has no batch dimension: one is put before its own, as the configuration has
    none either. Raises if no request can carry a tensor, or its name cannot be printed.
    """
    return Signature(_infos(engine.tensors, True, batching), _infos(engine.tensors, False, batching))


def _infos(specs: Iterable[TensorSpec], inputs: bool, batching: bool) -> tuple[TensorInfo, ...]:
    return tuple(_info(spec, batching) for spec in specs if spec.is_input is inputs)


def _info(spec: TensorSpec, batching: bool) -> TensorInfo:
    if not spec.name.isprintable() or not spec.name:
        raise InvalidArgumentError(
            f"the plan has a tensor with the name {spec.name!a}: messages and logs have lines of plain text only; "
            "rename it in the original model, and build the plan again"
        )
    data_type = DATA_TYPES.get(spec.element)
    if data_type is None:
        raise UnsupportedError(
            f"tensor '{spec.name}' of the plan has elements of type {spec.element.name}, which no request can carry; "
            f"build the plan with one of {', '.join(one.name for one in DATA_TYPES)} at its inputs and outputs"
        )
    dims = (-1, *spec.shape) if batching and spec.on_host else spec.shape
    return TensorInfo(spec.name, data_type, dims)


def batchable(engine: Describing) -> bool:
    """The first dimension of every tensor that lies on the device varies."""
    shapes = [spec.shape for spec in engine.tensors if not spec.on_host]
    return bool(shapes) and all(shape[:1] == (-1,) for shape in shapes)


def check_shape_tensors(config: ModelConfig, engine: Describing) -> None:
    """Raise ``InvalidArgumentError`` if ``is_shape_tensor`` of the configuration disagrees with the plan."""
    on_host = {spec.name: spec.on_host for spec in engine.tensors}
    tensors: list[Any] = [*config.input, *config.output]
    for item in tensors:
        if item.is_shape_tensor != on_host.get(item.name, item.is_shape_tensor):
            stands = "is" if on_host[item.name] else "is not"
            raise InvalidArgumentError(
                f"unable to load model '{config.name}': tensor '{item.name}' {stands} a shape tensor in the plan; "
                f"set is_shape_tensor: {str(on_host[item.name]).lower()} in the configuration"
            )


def check_batch_size(config: ModelConfig, engine: Describing, profiles: Sequence[int]) -> None:
    """Raise ``InvalidArgumentError`` for a ``max_batch_size`` that no profile allows: such requests could never run."""
    if not config.max_batch_size:
        return
    most = max((most_rows(engine, engine.profiles[index]) for index in profiles), default=0)
    if 0 < most < config.max_batch_size:
        raise InvalidArgumentError(
            f"unable to load model '{config.name}': max_batch_size is {config.max_batch_size}, and the largest batch "
            f"that the plan's profiles allow is {most}; lower it, or build the plan for larger batches"
        )


def most_rows(engine: Describing, profile: Profile) -> int:
    """The largest batch that ``profile`` and a configuration allow; 0 if the profile does not limit it."""
    rows = [
        profile.shapes[spec.name].most[0] if spec.name in profile.shapes else spec.shape[0]
        for spec in engine.tensors
        if spec.is_input and not spec.on_host and spec.shape
    ]
    limits = [one for one in rows if one >= 0]
    return min(*limits, _MOST_BATCH) if limits else 0
