"""Requests of C programs: into the core, and their answers back. The hot road: every line here is paid per request."""

from typing import Any, Final

from repoagent.serving.requests.request import Asked, InferRequest, InferResponse, ParameterValue
from repoagent_capi._crossing import ffi, lib
from repoagent_capi.errors import as_bytes, as_text, crossing, error_handle
from repoagent_capi.output_buffers import OutputBuffers
from repoagent_capi.parameters import parameters_out, value_of
from repoagent_capi.servers import SERVERS
from repoagent_capi.tensors import fill_output, input_tensor
from repoagent_capi.traces import Trace

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
        inputs[name] = input_tensor(crossed, model, name, item)
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
            fill_output(outputs[index], name, tensor, kept, places.addresses)
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
