"""The ``reshape`` of inputs and outputs: clients see one shape, the model another."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from repoagent.errors import InternalError
from repoagent.serving.requests.tensor import Tensor

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["Reshaper"]


class _Rule:
    """One tensor's way from one shape to another; ``-1`` dimensions keep their values, in order."""

    def __init__(self, source: Iterable[int], target: Iterable[int], batched: bool) -> None:
        self._source = tuple(source)
        self._target = tuple(target)
        self._batched = batched

    def apply(self, tensor: Tensor) -> Tensor:
        shape = tuple(tensor.shape)
        batch, dims = (shape[:1], shape[1:]) if self._batched else ((), shape)
        variable = iter([got for want, got in zip(self._source, dims, strict=False) if want == -1])
        target = [next(variable, -1) if dim == -1 else dim for dim in self._target]
        try:
            return Tensor(tensor.data_type, tensor.array.reshape((*batch, *target)))
        except ValueError as error:
            raise InternalError(f"a tensor of shape {shape} cannot be reshaped to {[*batch, *target]}") from error


class Reshaper:
    """All reshapes of one model. :meth:`of` returns None for the many models that have none."""

    def __init__(self, inputs: Mapping[str, _Rule], outputs: Mapping[str, _Rule]) -> None:
        self._inputs = inputs
        self._outputs = outputs

    @classmethod
    def of(cls, config: "ModelConfig") -> "Reshaper | None":
        """The reshapes that ``config`` asks for."""
        batched = config.max_batch_size > 0
        inputs = {
            item.name: _Rule(item.dims, item.reshape.shape, batched)
            for item in config.input
            if item.HasField("reshape")
        }
        outputs = {
            item.name: _Rule(item.reshape.shape, item.dims, batched)
            for item in config.output
            if item.HasField("reshape")
        }
        return cls(inputs, outputs) if inputs or outputs else None

    def to_model(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inputs of a request in the shapes that the model wants."""
        return self._apply(self._inputs, tensors)

    def to_client(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs of the model in the shapes that the configuration promises."""
        return self._apply(self._outputs, tensors)

    @staticmethod
    def _apply(rules: Mapping[str, _Rule], tensors: Mapping[str, Any]) -> dict[str, Tensor]:
        return {name: rules[name].apply(tensor) if name in rules else tensor for name, tensor in tensors.items()}
