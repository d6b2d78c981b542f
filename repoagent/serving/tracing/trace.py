"""The trace of one request, and of the requests to members that came of it."""

import json
import threading
from collections.abc import Callable
from typing import Any, Final

from repoagent.public_text import public_values
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.tensor import DataType, Tensor

__all__ = ["FileTrace"]

_UNPRINTED: Final = frozenset({DataType.FP16, DataType.BF16})


class FileTrace:
    """See :class:`~repoagent.serving.requests.request.RequestTrace`. What it collects is handed to ``done`` at the end.

    Code that has more to note than the core (when the request came over the network, when the answer left) asks for
    a trace that is ``held``, notes it with :meth:`note`, and calls :meth:`release`; otherwise :meth:`end` does that.
    """

    def __init__(
        self,
        level: frozenset[str],
        next_id: Callable[[], int],
        done: Callable[[list[str]], None],
        *,
        held: bool = False,
        parent: "FileTrace | None" = None,
    ) -> None:
        self.id = next_id()
        self._next_id = next_id
        self._level = level
        self._done = done
        self._held = held
        self._parent = parent
        self._lock = threading.Lock()
        self._records: list[str] = []
        self._children: list[FileTrace] = []

    def child(self) -> "FileTrace":
        """A trace for a request that is made for this one."""
        child = FileTrace(self._level, self._next_id, self._done, held=True, parent=self)
        with self._lock:
            self._children.append(child)
        return child

    def begin(self, request: InferRequest, version: int, now_ns: int) -> None:
        """The request has been accepted by that version of its model."""
        head: dict[str, Any] = {"id": self.id, "model_name": request.model_name, "model_version": version}
        if request.asked.id:
            head["request_id"] = request.asked.id
        if request.call_id:
            head["x_request_id"] = request.call_id
        if self._parent is not None:
            head["parent_id"] = self._parent.id
        self._add(head)
        self.note("REQUEST_START", now_ns)
        self.note("QUEUE_START", now_ns)
        for name, tensor in request.inputs.items():
            self._note_tensor("TENSOR_QUEUE_INPUT", name, tensor)

    def answer(self, response: InferResponse) -> None:
        """A response of the model."""
        for name, tensor in response.outputs.items():
            self._note_tensor("TENSOR_BACKEND_OUTPUT", name, tensor)

    def end(self, request: InferRequest, now_ns: int) -> None:
        """The final response is there."""
        times = request.times
        if times is not None:
            self.note("COMPUTE_START", times.start_ns)
            self.note("COMPUTE_INPUT_END", times.input_end_ns)
            self.note("COMPUTE_OUTPUT_START", times.output_start_ns)
            self.note("COMPUTE_END", times.end_ns)
        self.note("REQUEST_END", now_ns)
        if not self._held:
            self.release()

    def note(self, name: str, now_ns: int) -> None:
        """Something happened at ``now_ns`` (``time.monotonic_ns``)."""
        if "TIMESTAMPS" in self._level:
            self._add({"id": self.id, "timestamps": [{"name": name, "ns": now_ns}]})

    def release(self) -> None:
        """Nothing more will be noted: the trace can be written."""
        self._done(self._collected())

    def _collected(self) -> list[str]:
        with self._lock:
            children = list(self._children)
            records = list(self._records)
        for child in children:
            records += child._collected()
        return records

    def _note_tensor(self, activity: str, name: str, tensor: Tensor) -> None:
        if "TENSORS" in self._level:
            described = {
                "name": name,
                "data": _text(tensor),
                "shape": ",".join(str(dim) for dim in tensor.shape),
                "dtype": tensor.data_type.name,
            }
            self._add({"id": self.id, "activity": activity, "tensor": described})

    def _add(self, record: dict[str, Any]) -> None:
        text = json.dumps(record, separators=(",", ":"))
        if "\\ud" in text:  # perhaps half a pair, which no reader of JSON takes
            text = json.dumps(public_values(record), separators=(",", ":"))
        with self._lock:
            self._records.append(text)


def _text(tensor: Tensor) -> str:
    """The elements as Triton writes them; types of 16 bits have none."""
    if tensor.data_type in _UNPRINTED:
        return ""
    elements = tensor.array.ravel().tolist()
    if tensor.data_type is DataType.BYTES:
        return ",".join(f'"{_decoded(element)}"' for element in elements)
    if tensor.data_type in (DataType.FP32, DataType.FP64):
        return ",".join(f"{element:g}" for element in elements)
    return ",".join(str(int(element)) for element in elements)


def _decoded(element: bytes | str) -> str:
    return element if isinstance(element, str) else element.decode("utf-8", "replace")
