"""What goes back to who asked: one or more responses, exactly one of them final."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from repoagent.errors import RepoAgentError
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.senders import answer_error
from repoagent.serving.requests.tensor import NUMPY_TYPES, Array, DataType, Tensor
from repoagent_llm.backend.tensors import OUTPUTS

__all__ = ["Reply"]


class Reply:
    """The answer to one request of ``rows`` texts. Used by one thread at a time."""

    def __init__(
        self, request: InferRequest, version: str, rows: int, outputs: Collection[str], *, batching: bool
    ) -> None:
        """``outputs``: the names that the model's configuration has. ``batching``: tensors have a batch size."""
        self._request = request
        self._version = version
        self._open = rows
        self._several = rows > 1
        self._outputs = set(outputs).intersection(request.requested_outputs or outputs)
        self._batching = batching
        self._cancel: Callable[[], None] = lambda: None

    @property
    def over(self) -> bool:
        """Whether its end has been sent."""
        return not self._open

    def expect(self, parts: int) -> None:
        """All rows together come in so many parts, each with an end of its own."""
        self._open = parts

    def begin(self, cancel: Callable[[], None]) -> None:
        """All rows are on their way; ``cancel`` ends those that are, for when no one waits for them any more."""
        self._cancel = cancel
        self._request.on_cancel = cancel
        if self._request.cancelled or not self._open:
            cancel()

    def send(self, row: int, values: Mapping[str, Any], *, last: bool) -> None:
        """Send outputs of a row; ``last``: nothing more comes of it, or of this part of it."""
        if not self._open:
            return
        self._open -= last
        if self._several:
            values = {**values, "batch_index": [row]}
        outputs = {name: self._tensor(name, value) for name, value in values.items() if name in self._outputs}
        response = InferResponse(self._request.model_name, self._version, self._request.asked.id, outputs)
        self._request.send(response, not self._open)

    def fail(self, error: RepoAgentError) -> None:
        """End with an error, whatever rows are still open."""
        if self._open:
            self._open = 0
            self._cancel()
            answer_error(self._request, error, self._version)

    def _tensor(self, name: str, value: Any) -> Tensor:
        data_type = OUTPUTS[name].data_type
        array = _texts(value) if data_type is DataType.BYTES else np.asarray(value, NUMPY_TYPES[data_type])
        return Tensor(data_type, array[np.newaxis] if self._batching else array)


def _texts(values: list[str]) -> Array:
    return np.array([text.encode() for text in values], np.object_)
