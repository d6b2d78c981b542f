"""Ragged batches: inputs of different shapes as one row of elements, and the inputs with where each begins."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import numpy as np

from repoagent.config.model_config_pb2 import BatchInput
from repoagent.errors import InternalError
from repoagent.serving.instances.batches import Joiner
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import NUMPY_TYPES, Array, DataType, Tensor

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["RaggedJoiner"]


@dataclass(frozen=True, slots=True)
class _Made:
    """One input that is made from the requests of a batch."""

    kind: int
    data_type: DataType
    source: str
    targets: tuple[str, ...]

    def tensor(self, requests: Sequence[InferRequest]) -> Tensor:
        shapes = [request.inputs[self.source].array.shape for request in requests]
        values = _MAKERS[self.kind](shapes)
        return Tensor(self.data_type, values.astype(NUMPY_TYPES[self.data_type]))


_Shapes = Sequence[tuple[int, ...]]


def _counts(shapes: _Shapes) -> Array:
    return np.array([int(np.prod(shape)) for shape in shapes])


def _accumulated(shapes: _Shapes) -> Array:
    return np.cumsum(_counts(shapes))


def _accumulated_with_zero(shapes: _Shapes) -> Array:
    return np.concatenate([[0], _accumulated(shapes)])


def _largest_as_shape(shapes: _Shapes) -> Array:
    return np.zeros(_counts(shapes).max())


def _item_shapes(shapes: _Shapes) -> Array:
    return np.array([shape[1:] for shape in shapes for _ in range(shape[0])])


def _item_shapes_flat(shapes: _Shapes) -> Array:
    return _item_shapes(shapes).ravel()


_MAKERS: Final[Mapping[int, Callable[[_Shapes], Array]]] = {
    BatchInput.BATCH_ELEMENT_COUNT: _counts,
    BatchInput.BATCH_ACCUMULATED_ELEMENT_COUNT: _accumulated,
    BatchInput.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: _accumulated_with_zero,
    BatchInput.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE: _largest_as_shape,
    BatchInput.BATCH_ITEM_SHAPE: _item_shapes,
    BatchInput.BATCH_ITEM_SHAPE_FLATTEN: _item_shapes_flat,
}


@dataclass(frozen=True, slots=True)
class _Scattered:
    """An output that comes as one row of elements, and is cut as an input was put together."""

    source: str
    dims: tuple[int, ...]

    def shapes(self, requests: Sequence[InferRequest]) -> list[tuple[int, ...]]:
        """The shape of each request's part: dimensions that vary are those of the input, in order."""
        found = []
        for request in requests:
            batch, *variable = request.inputs[self.source].array.shape
            rest = iter(variable)
            given = [next(rest, dim) for dim in self.dims]
            found.append((batch, *(got if dim < 0 else dim for dim, got in zip(self.dims, given, strict=True))))
        return found


class RaggedJoiner(Joiner):
    """A :class:`Joiner` for a model with ragged inputs, or with inputs or outputs that follow from the batch."""

    def __init__(
        self,
        whole: frozenset[str],
        ragged: frozenset[str],
        made: Sequence[_Made],
        scattered: Mapping[str, _Scattered],
    ) -> None:
        super().__init__(whole)
        self._ragged = ragged
        self._made = tuple(made)
        self._scattered = scattered

    @classmethod
    def of(cls, config: "ModelConfig") -> "RaggedJoiner":
        """The joiner for a model that batches."""
        whole = [item.name for item in config.input if item.is_shape_tensor]
        whole += [item.name for item in config.output if item.is_shape_tensor]
        dims = {item.name: tuple(item.dims) for item in config.output}
        return cls(
            frozenset(whole),
            frozenset(item.name for item in config.input if item.allow_ragged_batch),
            [
                _Made(item.kind, DataType(item.data_type), item.source_input[0], tuple(item.target_name))
                for item in config.batch_input
            ],
            {
                target: _Scattered(item.source_input[0], dims[target])
                for item in config.batch_output
                for target in item.target_name
            },
        )

    @staticmethod
    def needed(config: "ModelConfig") -> bool:
        """Whether ``config`` asks for any of this."""
        ragged = any(item.allow_ragged_batch for item in config.input)
        return ragged or bool(config.batch_input or config.batch_output)

    def join(self, requests: Sequence[InferRequest]) -> dict[str, Tensor]:
        """See :meth:`Joiner.join`; ragged inputs are one row, and the inputs that describe them come with them."""
        joined = {
            name: Tensor(tensor.data_type, np.concatenate([request.inputs[name].array.ravel() for request in requests]))
            for name, tensor in requests[0].inputs.items()
            if name in self._ragged
        }
        even = [
            InferRequest(Asked(request.model_name, {n: t for n, t in request.inputs.items() if n not in self._ragged}))
            for request in requests
        ]
        joined |= super().join(even)
        for made in self._made:
            joined |= dict.fromkeys(made.targets, made.tensor(requests))
        return joined

    def split(
        self, outputs: Mapping[str, Tensor], requests: Sequence[InferRequest], sizes: Sequence[int]
    ) -> list[dict[str, Tensor]]:
        """See :meth:`Joiner.split`."""
        even = {name: tensor for name, tensor in outputs.items() if name not in self._scattered}
        everything = [InferRequest(Asked(request.model_name, {})) for request in requests]
        parts: list[dict[str, Tensor]] = super().split(even, everything, sizes)
        for name, rule in self._scattered.items():
            pieces = _cut(name, outputs[name], rule.shapes(requests)) if name in outputs else ()
            for part, piece in zip(parts, pieces, strict=False):
                part[name] = piece
        return [
            {name: tensor for name, tensor in part.items() if name in (request.requested_outputs or part)}
            for part, request in zip(parts, requests, strict=True)
        ]


def _cut(name: str, tensor: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    row = tensor.array.ravel()
    sizes = [int(np.prod(shape)) for shape in shapes]
    if sum(sizes) != row.size:
        raise InternalError(
            f"output '{name}' has {row.size} elements, but the inputs that it is to be cut like have {sum(sizes)}"
        )
    ends = list(accumulate(sizes))
    return [
        Tensor(tensor.data_type, row[end - size : end].reshape(shape))
        for size, end, shape in zip(sizes, ends, shapes, strict=True)
    ]
