"""What an ONNX Runtime session says about its tensors, in the terms of a model configuration."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from repoagent.errors import UnsupportedError
from repoagent.serving.requests.tensor import DataType

__all__ = ["Signature", "TensorInfo"]

_TYPES: Final = {
    "tensor(bool)": DataType.BOOL,
    "tensor(uint8)": DataType.UINT8,
    "tensor(uint16)": DataType.UINT16,
    "tensor(uint32)": DataType.UINT32,
    "tensor(uint64)": DataType.UINT64,
    "tensor(int8)": DataType.INT8,
    "tensor(int16)": DataType.INT16,
    "tensor(int32)": DataType.INT32,
    "tensor(int64)": DataType.INT64,
    "tensor(float16)": DataType.FP16,
    "tensor(float)": DataType.FP32,
    "tensor(double)": DataType.FP64,
    "tensor(string)": DataType.BYTES,
    "tensor(bfloat16)": DataType.BF16,
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One input or output of the graph. A variable dimension is -1."""

    name: str
    data_type: DataType
    dims: tuple[int, ...]

    @classmethod
    def of(cls, node: Any) -> "TensorInfo":
        """Read an ``onnxruntime.NodeArg``.

        Raises:
            UnsupportedError: it is no plain tensor of a type that the protocol knows.
        """
        data_type = _TYPES.get(node.type)
        if data_type is None:
            raise UnsupportedError(
                f"tensor '{node.name}' of the model has type '{node.type}', which cannot be served; supported are "
                f"{', '.join(_TYPES)}"
            )
        dims = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape)
        return cls(node.name, data_type, dims)

    @property
    def batchable(self) -> bool:
        """The first dimension is variable."""
        return bool(self.dims) and self.dims[0] == -1


@dataclass(frozen=True, slots=True)
class Signature:
    """All inputs, outputs and overridable initialisers of a model, in the graph's order."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    optional: tuple[TensorInfo, ...] = ()

    @classmethod
    def of(cls, session: Any) -> "Signature":
        """Read an ``onnxruntime.InferenceSession``."""

        def infos(nodes: Sequence[Any]) -> tuple[TensorInfo, ...]:
            return tuple(TensorInfo.of(node) for node in nodes)

        initialisers = infos(session.get_overridable_initializers())
        return cls(infos(session.get_inputs()), infos(session.get_outputs()), initialisers)

    @property
    def batchable(self) -> bool:
        """Every input and output has a variable first dimension, so it can be a batch."""
        return all(info.batchable for info in (*self.inputs, *self.outputs))
