"""Traces: what happened to a request, and when."""

import itertools
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

from repoagent.server.tensor import from_core
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.tensor import ServerEnum
from repoagent.serving.requests.tensor import Tensor as CoreTensor

_IDS: Final = itertools.count(1)


class InferenceTraceLevel(ServerEnum):
    """What a trace records; the numbers are bits and can be added."""

    DISABLED = 0
    MIN = 1
    MAX = 2
    TIMESTAMPS = 4
    TENSORS = 8


class InferenceTraceActivity(ServerEnum):
    """A step of a request that a trace records."""

    REQUEST_START = 0
    QUEUE_START = 1
    COMPUTE_START = 2
    COMPUTE_INPUT_END = 3
    COMPUTE_OUTPUT_START = 4
    COMPUTE_END = 5
    REQUEST_END = 6
    TENSOR_QUEUE_INPUT = 7
    TENSOR_BACKEND_INPUT = 8
    TENSOR_BACKEND_OUTPUT = 9


_TIMESTAMPS: Final = int(InferenceTraceLevel.TIMESTAMPS) | int(InferenceTraceLevel.MIN) | int(InferenceTraceLevel.MAX)
_TENSORS: Final = int(InferenceTraceLevel.TENSORS)


class TraceSteps:
    """What the core reports of a request, as activities in Triton's terms; a subclass passes them on."""

    __slots__ = ()

    def begin(self, request: InferRequest, version: int, now_ns: int) -> None:
        """``request`` goes to ``version`` of its model."""
        self._began(request, version)
        self._moment(InferenceTraceActivity.REQUEST_START, now_ns)
        self._moment(InferenceTraceActivity.QUEUE_START, now_ns)
        self._tensors(InferenceTraceActivity.TENSOR_QUEUE_INPUT, request.inputs)

    def answer(self, response: InferResponse) -> None:
        """A response is about to be sent."""
        self._tensors(InferenceTraceActivity.TENSOR_BACKEND_OUTPUT, response.outputs)

    def end(self, request: InferRequest, now_ns: int) -> None:
        """The final response is about to be sent."""
        times = request.times
        if times is not None:
            self._moment(InferenceTraceActivity.COMPUTE_START, times.start_ns)
            self._moment(InferenceTraceActivity.COMPUTE_INPUT_END, times.input_end_ns)
            self._moment(InferenceTraceActivity.COMPUTE_OUTPUT_START, times.output_start_ns)
            self._moment(InferenceTraceActivity.COMPUTE_END, times.end_ns)
        self._moment(InferenceTraceActivity.REQUEST_END, now_ns)

    def _began(self, request: InferRequest, version: int) -> None:
        raise NotImplementedError

    def _moment(self, activity: InferenceTraceActivity, now_ns: int) -> None:
        raise NotImplementedError

    def _tensors(self, activity: InferenceTraceActivity, tensors: Mapping[str, CoreTensor]) -> None:
        raise NotImplementedError


class InferenceTrace(TraceSteps):
    """Calls back with the steps of one request.

    ``InferenceTrace(level, parent_id, activity, tensor_activity, release, user_object)``; without ``tensor_activity``
    there are five arguments. ``level`` is a sum of :class:`InferenceTraceLevel`. Times are nanoseconds of the
    monotonic clock. All steps but the first are reported when the request is answered.
    """

    __slots__ = (
        "_activity",
        "_level",
        "_release",
        "_tensor_activity",
        "_userp",
        "id",
        "model_name",
        "model_version",
        "parent_id",
        "request_id",
    )

    def __init__(self, level: int, parent_id: int, activity_function: Callable[..., Any], *rest: Any) -> None:
        self._tensor_activity: Callable[..., Any] | None = None
        if len(rest) == 3:
            self._tensor_activity, *rest = rest  # type: ignore[assignment]
        if len(rest) != 2:
            raise TypeError(f"InferenceTrace takes 5 or 6 arguments, not {len(rest) + 3}")
        self._release, self._userp = rest
        self._level = int(level)
        self._activity = activity_function
        self.id = next(_IDS)
        self.parent_id = parent_id
        self.model_name = ""
        self.model_version = -1
        self.request_id = ""

    def release(self) -> None:
        """Give the trace back to who made it."""
        self._release(self, self._userp)

    def _began(self, request: InferRequest, version: int) -> None:
        self.model_name = request.model_name
        self.model_version = version
        self.request_id = request.asked.id

    def _moment(self, activity: InferenceTraceActivity, now_ns: int) -> None:
        if self._level & _TIMESTAMPS:
            self._activity(self, activity, now_ns, self._userp)

    def _tensors(self, activity: InferenceTraceActivity, tensors: Mapping[str, CoreTensor]) -> None:
        if self._tensor_activity is None or not self._level & _TENSORS:
            return
        for name, core in tensors.items():
            tensor = from_core(core)
            self._tensor_activity(
                self,
                activity,
                name,
                tensor.data_type,
                tensor.data_ptr,
                tensor.size,
                list(tensor.shape),
                tensor.memory_type,
                tensor.memory_type_id,
                self._userp,
            )


class TraceGuard:
    """Kept by every response to a request; the trace is given back when the last of them has gone."""

    __slots__ = ("__weakref__",)

    def __init__(self, trace: InferenceTrace) -> None:
        weakref.finalize(self, trace.release).atexit = False
