"""Several requests as one batch for a runner: inputs joined with one copy, outputs handed out as views."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np

from repoagent.config import ModelConfig
from repoagent.config.model_config_pb2 import BatchInput
from repoagent.errors import InternalError, RepoAgentError
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import NUMPY_TYPES, Array, DataType, Tensor


@dataclass(slots=True, eq=False)
class Batch:
    """Requests on their way through an instance together. Times are ``time.monotonic_ns``."""

    requests: Sequence[InferRequest]
    joined: bool = False
    """They are executed as one; else one by one."""
    sizes: Sequence[int] = ()
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    parts: Mapping[str, Sequence[Array]] = field(default_factory=dict)
    """In place of ``inputs`` for a runner that joins them itself."""
    begun: Any = None
    """What such a runner gave for the run that is on its way."""
    wanted: Sequence[str] = ()
    """The names of the outputs that the requests want; empty for all."""
    outputs: Mapping[str, Tensor] = field(default_factory=dict)
    start_ns: int = 0
    input_end_ns: int = 0
    output_start_ns: int = 0
    error: RepoAgentError | None = None
    """What went wrong so far."""


def requested_outputs(requests: Sequence[InferRequest]) -> tuple[str, ...]:
    """The outputs that ``requests`` want together; empty for all."""
    if not all(request.requested_outputs for request in requests):
        return ()
    return tuple(dict.fromkeys(name for request in requests for name in request.requested_outputs))


class Joiner:
    """Joins and splits the requests to one model along their first dimension."""

    def __init__(self, config: ModelConfig) -> None:
        tensors: list[Any] = [*config.input, *config.output]
        self._whole = frozenset(item.name for item in tensors if item.is_shape_tensor)
        """Without a batch dimension: such an input is the same in all requests, such an output goes to all of them."""

    def join(self, requests: Sequence[InferRequest]) -> dict[str, Tensor]:
        """The inputs of all ``requests``, which have the same inputs of the same shapes but for the first dimension."""
        return {
            name: tensor
            if name in self._whole
            else Tensor(tensor.data_type, np.concatenate([request.inputs[name].array for request in requests]))
            for name, tensor in requests[0].inputs.items()
        }

    def parts(self, inputs: Sequence[Mapping[str, Tensor]]) -> dict[str, Sequence[Array]]:
        """The same without joining: each input of several requests in its parts."""
        return {
            name: (tensor.array,) if name in self._whole else [one[name].array for one in inputs]
            for name, tensor in inputs[0].items()
        }

    def sizes(self, requests: Sequence[InferRequest]) -> list[int]:
        """How many rows of the batch belong to each of ``requests``."""
        name = next((name for name in requests[0].inputs if name not in self._whole), None)
        return [1 if name is None else request.inputs[name].array.shape[0] for request in requests]

    def split(
        self, outputs: Mapping[str, Tensor], requests: Sequence[InferRequest], sizes: Sequence[int]
    ) -> list[dict[str, Tensor]]:
        """Each request's part of ``outputs``, without a copy, and only what it asked for. Raises ``InternalError`` if
        an output does not have as many rows as the batch."""
        bounds = list(pairwise(accumulate(sizes, initial=0)))
        for name, tensor in outputs.items():
            if name not in self._whole and tensor.array.shape[:1] != (bounds[-1][1],):
                raise InternalError(
                    f"output '{name}' has shape {list(tensor.array.shape)}, but its first dimension must be "
                    f"{bounds[-1][1]}: the inferences of {len(requests)} requests were executed together"
                )
        parts = {name: self._parts(name, tensor, bounds) for name, tensor in outputs.items()}
        if len(parts) == 1 and not any(request.requested_outputs for request in requests):
            ((name, column),) = parts.items()
            return [{name: part} for part in column]
        return [
            {name: parts[name][index] for name in request.requested_outputs or outputs}
            for index, request in enumerate(requests)
        ]

    def _parts(self, name: str, tensor: Tensor, bounds: Sequence[tuple[int, int]]) -> list[Tensor]:
        """The part of each request in one output."""
        if name in self._whole:
            return [tensor] * len(bounds)
        kind, array = tensor.data_type, tensor.array
        return [Tensor(kind, array[start:end]) for start, end in bounds]


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


def _item_shapes(shapes: _Shapes) -> Array:
    return np.array([shape[1:] for shape in shapes for _ in range(shape[0])])


_MAKERS: Final[Mapping[int, Callable[[_Shapes], Array]]] = {
    BatchInput.BATCH_ELEMENT_COUNT: _counts,
    BatchInput.BATCH_ACCUMULATED_ELEMENT_COUNT: lambda shapes: np.cumsum(_counts(shapes)),
    BatchInput.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: lambda shapes: np.cumsum([0, *_counts(shapes)]),
    BatchInput.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE: lambda shapes: np.zeros(_counts(shapes).max()),
    BatchInput.BATCH_ITEM_SHAPE: _item_shapes,
    BatchInput.BATCH_ITEM_SHAPE_FLATTEN: lambda shapes: _item_shapes(shapes).ravel(),
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

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        dims = {item.name: tuple(item.dims) for item in config.output}
        self._ragged = frozenset(item.name for item in config.input if item.allow_ragged_batch)
        self._made = [
            _Made(item.kind, DataType(item.data_type), item.source_input[0], tuple(item.target_name))
            for item in config.batch_input
        ]
        self._scattered = {
            target: _Scattered(item.source_input[0], dims[target])
            for item in config.batch_output
            for target in item.target_name
        }

    @staticmethod
    def needed(config: ModelConfig) -> bool:
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
