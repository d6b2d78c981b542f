"""Which requests may share a batch."""

from collections.abc import Hashable
from typing import TYPE_CHECKING

from repoagent.serving.requests.request import InferRequest

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["BatchRule"]


class BatchRule:
    """The rule of one model: same shapes apart from the batch, same shape values, same choice of optional inputs."""

    __slots__ = ("_batched", "_optional", "_shapes", "_variable", "trivial")

    def __init__(self, config: "ModelConfig") -> None:
        batching = config.max_batch_size > 0
        self._batched = tuple(item.name for item in config.input if batching and not item.is_shape_tensor)
        states = [state.input_name for state in config.sequence_batching.state if -1 in state.dims]
        uneven = [item for item in config.input if -1 in item.dims and not item.allow_ragged_batch]
        inputs = [item.name for item in uneven if not item.is_shape_tensor]
        self._variable = (*inputs, *states)
        self._shapes = tuple(item.name for item in config.input if item.is_shape_tensor)
        self._optional = tuple(item.name for item in config.input if item.optional)
        self.trivial = not (self._variable or self._shapes or self._optional)
        """Any requests may share a batch."""

    def size(self, request: InferRequest) -> int:
        """How many inferences ``request`` asks for, at least 1."""
        for name in self._batched:
            tensor = request.inputs.get(name)
            if tensor is not None:
                rows: int = tensor.array.shape[0]
                return rows or 1
        return 1

    def key(self, request: InferRequest) -> Hashable:
        """Equal for requests that may share a batch; so is None for all, if the rule is trivial."""
        if self.trivial:
            return None
        inputs = request.inputs
        return (
            tuple(inputs[name].array.shape[1:] for name in self._variable if name in inputs),
            tuple(inputs[name].array.tobytes() for name in self._shapes if name in inputs),
            tuple(name in inputs for name in self._optional),
        )
