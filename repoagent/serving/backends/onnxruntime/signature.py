"""What an ONNX Runtime session states about its tensors, in the terms of a model configuration."""

from typing import Any, Final

from repoagent.errors import UnsupportedError
from repoagent.serving.backends.signatures import Signature, TensorInfo
from repoagent.serving.requests.tensor import DataType

__all__ = ["left_out", "signature_of"]

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
_ZIPMAP: Final = ("seq(map(int64,tensor(float)))", "seq(map(string,tensor(float)))")


def signature_of(session: Any) -> Signature:
    """Read an ``onnxruntime.InferenceSession``. Outputs that no protocol can carry are left out.

    Raises:
        UnsupportedError: an input, or every output, is not a plain tensor of a type that the protocol knows.
    """
    nodes = session.get_outputs()
    return Signature(
        tuple(map(_info, session.get_inputs())),
        tuple(_info(node) for node in nodes if node.type in _TYPES) or tuple(map(_info, nodes)),
        tuple(map(_info, session.get_overridable_initializers())),
    )


def left_out(session: Any) -> list[str]:
    """Why each output that :func:`signature_of` leaves out cannot be served."""
    return [str(_unservable(node)) for node in session.get_outputs() if node.type not in _TYPES]


def _info(node: Any) -> TensorInfo:
    data_type = _TYPES.get(node.type)
    if data_type is None:
        raise _unservable(node)
    return TensorInfo(
        node.name, data_type, tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape)
    )


def _unservable(node: Any) -> UnsupportedError:
    # What skl2onnx gives the probabilities of a classifier, unless it is asked for a matrix.
    way = "; write the model with skl2onnx.to_onnx(..., options={'zipmap': False})" if node.type in _ZIPMAP else ""
    return UnsupportedError(
        f"tensor '{node.name}' of the model has type '{node.type}', which cannot be served{way}; supported are "
        f"{', '.join(_TYPES)}"
    )
