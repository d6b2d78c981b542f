"""What the core tells of a traced request, on its way to the functions of the program."""

from collections.abc import Mapping
from typing import Any, Final

from repoagent.server.enums import InferenceTraceActivity as Activity
from repoagent.server.enums import InferenceTraceLevel as Level
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.tensor import Tensor
from repoagent_capi._crossing import ffi, lib
from repoagent_capi.errors import as_bytes
from repoagent_capi.tensors import fill_output

__all__ = ["Trace"]

_TENSORS: Final = int(Level.TENSORS)


class Trace:
    """A :class:`~repoagent.serving.requests.request.RequestTrace` over a trace of C.

    The trace of a program's own request goes back to it with the request; those of the requests that an ensemble makes
    end here.
    """

    __slots__ = ("_is_child", "_level", "_number")

    def __init__(self, number: int, level: int, *, is_child: bool = False) -> None:
        self._number = number
        self._level = level
        self._is_child = is_child

    def begin(self, request: InferRequest, version: int, now_ns: int) -> None:
        """That version of the model has accepted the request."""
        lib.repoagent_trace_begin(self._number, as_bytes(request.model_name), version, as_bytes(request.asked.id))
        self._moment(Activity.REQUEST_START, now_ns)
        self._moment(Activity.QUEUE_START, now_ns)
        self._tensors(Activity.TENSOR_QUEUE_INPUT, request.inputs)

    def answer(self, response: InferResponse) -> None:
        """A response is about to be sent."""
        self._tensors(Activity.TENSOR_BACKEND_OUTPUT, response.outputs)

    def end(self, request: InferRequest, now_ns: int) -> None:
        """The final response is about to be sent."""
        times = request.times
        if times is not None:
            self._moment(Activity.COMPUTE_START, times.start_ns)
            self._moment(Activity.COMPUTE_INPUT_END, times.input_end_ns)
            self._moment(Activity.COMPUTE_OUTPUT_START, times.output_start_ns)
            self._moment(Activity.COMPUTE_END, times.end_ns)
        self._moment(Activity.REQUEST_END, now_ns)
        if self._is_child:
            lib.repoagent_trace_end(self._number)

    def child(self) -> "Trace":
        """A trace for a request that is made for this one."""
        return Trace(lib.repoagent_trace_child(self._number), self._level, is_child=True)

    def _moment(self, activity: Activity, now_ns: int) -> None:
        lib.repoagent_trace_activity(self._number, int(activity), now_ns)

    def _tensors(self, activity: Activity, tensors: Mapping[str, Tensor]) -> None:
        if not self._level & _TENSORS:
            return
        for name, tensor in tensors.items():
            kept: list[Any] = []
            output = ffi.new("core_output*")
            fill_output(output[0], name, tensor, kept)
            lib.repoagent_trace_tensor(self._number, int(activity), output)
