"""What an ONNX Runtime session says about its tensors, in the terms of a model configuration."""

from collections.abc import Sequence
from typing import Any, Final

from repoagent.errors import UnsupportedError
from repoagent.serving.backends.signatures.signature import Signature, TensorInfo
from repoagent.serving.requests.tensor import DataType

__all__ = ["signature_of"]

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


def signature_of(session: Any) -> Signature:
    """Read an ``onnxruntime.InferenceSession``.

    Raises:
        UnsupportedError: a tensor is not a plain one of a type that the protocol knows.
    """

    def infos(nodes: Sequence[Any]) -> tuple[TensorInfo, ...]:
        return tuple(_info(node) for node in nodes)

    initialisers = infos(session.get_overridable_initializers())
    return Signature(infos(session.get_inputs()), infos(session.get_outputs()), initialisers)


def _info(node: Any) -> TensorInfo:
    data_type = _TYPES.get(node.type)
    if data_type is None:
        raise UnsupportedError(
            f"tensor '{node.name}' of the model has type '{node.type}', which cannot be served; supported are "
            f"{', '.join(_TYPES)}"
        )
    return TensorInfo(
        node.name, data_type, tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape)
    )
