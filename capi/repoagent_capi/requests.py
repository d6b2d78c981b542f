"""Requests of C programs: into the core, and their answers back. The hot road: every line here is paid per request.

Tensors lie in the memory of the program where that is possible.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from repoagent.errors import InvalidArgumentError, RepoAgentError
from repoagent.server.datatypes import as_bytes_array, deserialize, serialize
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse, OutputPlace, ParameterValue
from repoagent.serving.requests.tensor import NUMPY_TYPES, DataType, Tensor, array_at
from repoagent_capi._crossing import ffi, lib
from repoagent_capi.errors import as_bytes, as_text, crossing, error_handle
from repoagent_capi.parameters import parameters_out, value_of
from repoagent_capi.servers import SERVERS, request_to
from repoagent_capi.triton_bindings.request import raw_tensor
from repoagent_capi.triton_bindings.trace import InferenceTraceActivity as Activity
from repoagent_capi.triton_bindings.trace import InferenceTraceLevel as Level
from repoagent_capi.triton_bindings.trace import TraceSteps

_TENSORS: Final = int(Level.TENSORS)
_TYPES: Final = tuple(DataType)
_NUMBERS: Final = {kind: int(kind) for kind in DataType}
_BYTES: Final = DataType.BYTES
_RAW: Final = int(DataType.INVALID)
_NOWHERE: Final[Mapping[str, int]] = {}


def _input_tensor(crossed: Any, model: str, name: str, item: Any) -> Tensor:
    """An input of the core over the caller's memory; elements of BYTES are copied.

    Raises:
        InvalidArgumentError: the memory does not hold what the shape asks for.
    """
    if item.datatype == _RAW:
        served = SERVERS[crossed.server].core.find(request_to(model, crossed.model_version))
        return raw_tensor(served.config, model, name, _memory(item))
    kind = _TYPES[item.datatype]
    shape = tuple(ffi.unpack(item.shape, item.dim_count)) if item.dim_count else ()
    if any(dim < 0 for dim in shape):
        raise InvalidArgumentError(f"input '{name}' of model '{model}' has a negative dimension: {list(shape)}")
    if kind is _BYTES:
        return Tensor(kind, deserialize(_memory(item), shape))
    dtype = NUMPY_TYPES[kind]
    needed = dtype.itemsize * math.prod(shape)
    if item.byte_size != needed:
        raise InvalidArgumentError(
            f"input byte size mismatch for input '{name}' for model '{model}'. Expected {needed}, got {item.byte_size}"
        )
    return Tensor(kind, array_at(_memory(item), 0, dtype, shape))


def _memory(item: Any) -> Any:
    return memoryview(ffi.buffer(item.base, item.byte_size)).toreadonly() if item.byte_size else b""


def _fill_output(
    output: Any, name: str, tensor: Tensor, kept: list[Any], addresses: Mapping[str, int] = _NOWHERE
) -> None:
    """``tensor`` as a ``core_output``; ``kept`` must live as long as it is used.

    An output that lies at its one of ``addresses`` is in memory of the program, and is not kept.
    """
    array = tensor.array
    if tensor.data_type is _BYTES:
        memory: Any = serialize(as_bytes_array(array).reshape(-1).tolist())
        size = len(memory)
    else:
        memory = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        size = memory.nbytes
    text, shape = ffi.new("char[]", as_bytes(name)), ffi.new("int64_t[]", list(array.shape))
    base = ffi.from_buffer(memory) if size else ffi.NULL
    kept += (text, shape)
    if not addresses or addresses.get(name) != int(ffi.cast("uintptr_t", base)):
        kept += (memory, base)
    output.name = text
    output.datatype = _NUMBERS[tensor.data_type]
    output.shape = shape
    output.dim_count = len(array.shape)
    output.base = base
    output.byte_size = size


class Trace(TraceSteps):
    """A :class:`~repoagent.serving.requests.request.RequestTrace` over a trace of C.

    The trace of a program's own request goes back to it with the request; those of the requests that an ensemble makes
    end here.
    """

    __slots__ = ("_is_child", "_level", "_number")

    def __init__(self, number: int, level: int, *, is_child: bool = False) -> None:
        self._number = number
        self._level = level
        self._is_child = is_child

    def end(self, request: InferRequest, now_ns: int) -> None:
        """See :class:`TraceSteps`; a child ends here."""
        super().end(request, now_ns)
        if self._is_child:
            lib.repoagent_trace_end(self._number)

    def child(self) -> "Trace":
        """A trace for a request that is made for this one."""
        return Trace(lib.repoagent_trace_child(self._number), self._level, is_child=True)

    def _began(self, request: InferRequest, version: int) -> None:
        lib.repoagent_trace_begin(self._number, as_bytes(request.model_name), version, as_bytes(request.asked.id))

    def _moment(self, activity: Activity, now_ns: int) -> None:
        lib.repoagent_trace_activity(self._number, int(activity), now_ns)

    def _tensors(self, activity: Activity, tensors: Mapping[str, Tensor]) -> None:
        if not self._level & _TENSORS:
            return
        for name, tensor in tensors.items():
            kept: list[Any] = []
            output = ffi.new("core_output*")
            _fill_output(output[0], name, tensor, kept)
            lib.repoagent_trace_tensor(self._number, int(activity), output)


class OutputBuffers(Mapping[str, OutputPlace]):
    """Those of one request: of the outputs that its client gets, each once. The program's allocator is asked late."""

    __slots__ = ("_asked", "_left", "_server", "_submission", "addresses")

    def __init__(self, submission: int, server: int, asked: Asked) -> None:
        self._submission = submission
        self._server = server
        self._asked = asked
        self._left: set[str] | None = None
        self.addresses: dict[str, int] = {}
        """Where the program's memory for an output begins."""

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self._names())

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __getitem__(self, name: str) -> "OutputPlace":
        self._names().remove(name)
        return _Place(self._submission, name, self.addresses)

    def _names(self) -> set[str]:
        if self._left is None:
            self._left = set(self._asked.requested_outputs or self._outputs())
        return self._left

    def _outputs(self) -> list[str]:
        """Not what is asked of the model, which may be more: states of a sequence are not the client's."""
        try:
            served = SERVERS[self._server].core.find(InferRequest(self._asked))
        except RepoAgentError:
            return []  # It was unloaded meanwhile.
        return [item.name for item in served.config.output]


class _Place:
    """An :class:`~repoagent.serving.requests.request.OutputPlace`."""

    def __init__(self, submission: int, name: str, addresses: dict[str, int]) -> None:
        self._submission = submission
        self._name = name
        self._addresses = addresses

    def room(self, byte_size: int) -> memoryview | None:
        place = lib.repoagent_place(self._submission, self._name.encode(), byte_size)
        if place == ffi.NULL or not byte_size:
            return None
        self._addresses[self._name] = int(ffi.cast("uintptr_t", place.base))
        # Whatever is made there keeps the view, and with it the program's memory.
        base: Any = ffi.gc(place.base, lambda _base: lib.repoagent_place_return(place))
        return memoryview(ffi.buffer(base, byte_size))


_RUNNING: Final[dict[int, InferRequest]] = {}
"""Submission -> its request, until it is answered."""

_START: Final = 1
_END: Final = 2


@crossing
def submit(crossed: Any) -> None:
    core = SERVERS[crossed.server].core
    request = _request(crossed)
    core.check(request)
    if crossed.only_check:
        return
    _RUNNING[crossed.submission] = request
    if crossed.trace:
        request.trace = Trace(crossed.trace, crossed.trace_level)
    core.submit(request)


@crossing
def cancel(submission: int) -> None:
    request = _RUNNING.get(submission)
    if request is not None:
        request.cancel()


class _Delivery:
    """Takes the core's responses to one request back to C."""

    __slots__ = ("_places", "_submission")

    def __init__(self, submission: int, places: OutputBuffers) -> None:
        self._submission = submission
        self._places = places

    def send(self, response: InferResponse | None, final: bool) -> None:
        """See :class:`~repoagent.serving.requests.request.ResponseSender`."""
        if final:
            _RUNNING.pop(self._submission, None)
        kept: list[Any] = []
        try:
            crossing = ffi.NULL if response is None else _response(response, self._places, kept)
        except Exception as error:
            crossing = _failure(response, error, kept)
        lib.repoagent_respond(self._submission, crossing, final)


def _request(crossed: Any) -> InferRequest:
    version = crossed.model_version
    model = as_text(crossed.model_name)
    inputs = {}
    for index in range(crossed.input_count):
        item = crossed.inputs[index]
        name = as_text(item.name)
        inputs[name] = _input_tensor(crossed, model, name, item)
    flags = crossed.flags
    correlation: int | str = crossed.correlation_id
    if crossed.correlation_text:
        correlation = as_text(crossed.correlation_text)
    asked = Asked(
        model,
        inputs,
        "" if version == -1 else str(version),
        id=as_text(crossed.id),
        requested_outputs=tuple(as_text(crossed.outputs[index]) for index in range(crossed.output_count)),
        parameters=_parameters(crossed),
        correlation_id=correlation,
        sequence_start=bool(flags & _START),
        sequence_end=bool(flags & _END),
        priority=crossed.priority,
        timeout_us=crossed.timeout_us,
    )
    places = OutputBuffers(crossed.submission, crossed.server, asked)
    return InferRequest(asked, _Delivery(crossed.submission, places), output_places=places)


def _parameters(crossed: Any) -> dict[str, ParameterValue]:
    items = crossed.parameters
    return {as_text(items[index].name): value_of(items[index]) for index in range(crossed.parameter_count)}


def _response(response: InferResponse, places: OutputBuffers, kept: list[Any]) -> Any:
    made = _head(response, kept)
    if response.error is not None:
        made.error = error_handle(response.error)
        return made
    if response.outputs:
        outputs = ffi.new("core_output[]", len(response.outputs))
        kept.append(outputs)
        for index, (name, tensor) in enumerate(response.outputs.items()):
            _fill_output(outputs[index], name, tensor, kept, places.addresses)
        made.outputs = outputs
        made.output_count = len(response.outputs)
        if places.addresses:
            response.outputs = {}  # So that the program gets its memory back when it deletes the response.
    if response.parameters:
        made.parameters = parameters_out(response.parameters, kept)
        made.parameter_count = len(response.parameters)
    return made


def _head(response: InferResponse, kept: list[Any]) -> Any:
    made = ffi.new("core_response*")
    name, text = ffi.new("char[]", as_bytes(response.model_name)), ffi.new("char[]", as_bytes(response.id))
    kept += (made, name, text)
    made.model_name = name
    made.id = text
    made.model_version = int(response.model_version or -1)
    return made


def _failure(response: InferResponse | None, error: Exception, kept: list[Any]) -> Any:
    """A response that cannot cross, as the reason why."""
    assert response is not None
    made = _head(response, kept)
    made.error = error_handle(error)
    return made
