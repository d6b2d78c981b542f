"""Several requests as one batch for a runner: inputs joined with one copy, outputs handed out as views."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from repoagent.errors import InternalError, RepoAgentError
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.requests.tensor import Array, Tensor

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["Batch", "Joiner", "requested_outputs"]


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
    """Joins and splits the requests to one model along their first dimension.

    ``whole`` are the tensors without a batch dimension: as an input it is the same in all requests, as an output it
    goes to all of them.
    """

    def __init__(self, whole: frozenset[str] = frozenset()) -> None:
        self._whole = whole

    @classmethod
    def of(cls, config: "ModelConfig") -> "Joiner":
        """The joiner for a model that batches."""
        inputs = [item.name for item in config.input if item.is_shape_tensor]
        return cls(frozenset(inputs + [item.name for item in config.output if item.is_shape_tensor]))

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
        """Each request's part of ``outputs``, without a copy, and only what it asked for.

        Raises:
            InternalError: an output does not have as many rows as the batch.
        """
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
