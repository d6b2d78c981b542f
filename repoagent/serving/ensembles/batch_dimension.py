"""Tensors between models that batch and models that do not: a batch dimension of 1 is added or taken off."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from repoagent.serving.requests.tensor import Tensor

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["Fit", "Fits"]


@dataclass(frozen=True, slots=True)
class Fit:
    """How a tensor gets into the shape of its consumer, which batches if its producer does not, and the reverse."""

    dims: tuple[int, ...]
    """What the consumer's configuration expects, without the batch dimension."""
    adds: bool
    """The consumer batches; else the producer does."""

    def apply(self, tensor: Tensor) -> Tensor:
        """``tensor`` as the consumer wants it, or unchanged if its shape is the consumer's business. Never a copy."""
        shape = tuple(tensor.shape)
        matches = _matches(self.dims, shape)
        if self.adds and matches:
            return Tensor(tensor.data_type, tensor.array[None, ...])
        if not self.adds and not matches and shape[:1] == (1,):
            return Tensor(tensor.data_type, tensor.array[0])
        return tensor


def _matches(dims: Sequence[int], shape: Sequence[int]) -> bool:
    return len(dims) == len(shape) and all(want in (-1, got) for want, got in zip(dims, shape, strict=True))


class Fits:
    """The tensors of an ensemble that go from a model that batches to one that does not, or the reverse."""

    def __init__(self, config: "ModelConfig", members: Sequence["ModelConfig"]) -> None:
        """``members`` are the completed configurations of the steps' models, in the steps' order."""
        self._config = config
        self._members = members
        self._batched = _batched(config, config.input)
        for step, member in zip(config.ensemble_scheduling.step, members, strict=True):
            made = _batched(member, member.output)
            self._batched |= {tensor: made[name] for name, tensor in step.output_map.items() if name in made}

    def inputs(self, index: int) -> Mapping[str, Fit]:
        """Those of the inputs of a step, by the member's names."""
        member = self._members[index]
        return self._of(member, member.input, self._config.ensemble_scheduling.step[index].input_map)

    def outputs(self) -> Mapping[str, Fit]:
        """Those of the outputs of the ensemble."""
        config = self._config
        return self._of(config, config.output, {item.name: item.name for item in config.output}, reshape=True)

    def _of(
        self, consumer: "ModelConfig", items: Iterable[Any], tensors: Mapping[str, str], *, reshape: bool = False
    ) -> dict[str, Fit]:
        batched = _batched(consumer, items)
        return {
            item.name: Fit(_dims(item, reshape), batched[item.name])
            for item in items
            if item.name in tensors and self._batched.get(tensors[item.name], batched[item.name]) != batched[item.name]
        }


def _dims(item: Any, reshape: bool) -> tuple[int, ...]:
    return tuple(item.reshape.shape if reshape and item.HasField("reshape") else item.dims)


def _batched(config: "ModelConfig", items: Iterable[Any]) -> dict[str, bool]:
    """Which tensors of a model have a batch dimension."""
    return {item.name: config.max_batch_size > 0 and not item.is_shape_tensor for item in items}
