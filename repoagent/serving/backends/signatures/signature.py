"""The tensors of a model, in the terms of a model configuration."""

from dataclasses import dataclass

from repoagent.serving.requests.tensor import DataType

__all__ = ["Signature", "TensorInfo"]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One input or output of a model. A variable dimension is -1."""

    name: str
    data_type: DataType
    dims: tuple[int, ...]

    @property
    def batchable(self) -> bool:
        """The first dimension is variable."""
        return bool(self.dims) and self.dims[0] == -1


@dataclass(frozen=True, slots=True)
class Signature:
    """All inputs, outputs and overridable initialisers of a model, in the model's order."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    optional: tuple[TensorInfo, ...] = ()

    @property
    def batchable(self) -> bool:
        """Every input and output has a variable first dimension, so it can be a batch."""
        return all(info.batchable for info in (*self.inputs, *self.outputs))
