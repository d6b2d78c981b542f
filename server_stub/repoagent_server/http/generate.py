"""``generate`` and ``generate_stream``: a flat JSON request, and one JSON answer or a stream of events.

``invocations``, a table and the table of its answers, goes the same way.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from repoagent.errors import ErrorCode, InternalError, InvalidArgumentError, RepoAgentError
from repoagent.serving.measuring.custom_metrics import REGISTRY, MetricKind
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse
from repoagent.serving.requests.tensor import Tensor
from repoagent_server.access import Right
from repoagent_server.codec.binary import BY_TYPE, JsonKind
from repoagent_server.codec.generate_request import read_generate
from repoagent_server.codec.infer_request import OutputEncoding
from repoagent_server.codec.infer_response import json_values
from repoagent_server.codec.json_text import Fragment, dumps
from repoagent_server.codec.long_json import LONG_JSON
from repoagent_server.codec.table import read_table, write_table
from repoagent_server.handlers.inference import Answer, Inference, Mailbox, check_version
from repoagent_server.http.infer import WholeAnswer
from repoagent_server.http.long_work import LongWork
from repoagent_server.http.messages import EVENTS, STATUS_OF, Exchange, Header, Request, Response, error_response
from repoagent_server.http.service import Params, fault
from repoagent_server.shared.client_text import client_text


def write_generate(response: InferResponse) -> bytes:
    """The JSON: an output of one element is a bare value, any other a flat array.

    Raises:
        InvalidArgumentError: an output has a type that JSON cannot carry.
    """
    document: dict[str, Any] = {"id": response.id} if response.id else {}
    document["model_name"] = response.model_name
    document["model_version"] = response.model_version
    document.update(response.parameters)
    document.update((name, _value(tensor)) for name, tensor in response.outputs.items())
    return dumps(document)


def _value(tensor: Tensor) -> Any:
    info = BY_TYPE[tensor.data_type]
    if tensor.array.size != 1:
        return json_values(info, tensor)
    if info.json is JsonKind.STRING:  # what streams have in each of their pieces
        text = tensor.array.item()
        return text if isinstance(text, str) else text.decode("utf-8", "surrogateescape")
    return Fragment(dumps(json_values(info, tensor))[1:-1])


_NOT_ONE: Final = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various "
    "number of responses"
)
_IDENTITY: Final = (b"", b"identity")
_ALL_JSON: Final = OutputEncoding()


def check_encoding(request: Request) -> None:
    """Refuse a body that is compressed.

    Raises:
        InvalidArgumentError: it is.
    """
    if (request.frame.encoding or b"").lower() not in _IDENTITY:
        raise InvalidArgumentError("Unsupported content-encoding, only 'identity' is supported.")


_Read = Callable[..., Asked]
"""What reads a body: :func:`read_generate` or :func:`read_table`."""
_Write = Callable[[InferResponse], bytes]
_Submit = Callable[[Asked], None]


class GenerateRoutes:
    """The three routes. One per event loop."""

    def __init__(self, inference: Inference, max_input_size: int, long: LongWork) -> None:
        self._inference = inference
        self._long = long
        self._max_input_size = max_input_size

    def once(self, request: Request, params: Params, exchange: Exchange) -> None:
        """``POST v2/models/M/generate``."""
        self._generate(self._submitting(write_generate, request, exchange), request, params, exchange)

    def table(self, request: Request, params: Params, exchange: Exchange) -> None:
        """``POST v2/models/M/invocations``. A long one is refused, so none is read on a thread."""
        self._read_and(read_table, self._submitting(write_table, request, exchange), request, params, exchange)

    def _submitting(self, write: _Write, request: Request, exchange: Exchange) -> _Submit:
        answer = _Once(self._inference.mailbox, exchange, request, self._long, write)
        return lambda asked: self._inference.core.submit(self._prepare(asked, request, exchange, answer))

    def stream(self, request: Request, params: Params, exchange: Exchange) -> None:
        """``POST v2/models/M/generate_stream``."""
        answer = _Stream(self._inference.mailbox, exchange, wanted_report(request))

        def submit(asked: Asked) -> None:
            generate = answer.request = self._prepare(asked, request, exchange, answer)
            try:
                self._inference.core.check(generate)  # what it refuses is no event, but a plain answer
                self._inference.core.submit(generate)
            finally:
                answer.request = None

        self._generate(submit, request, params, exchange)

    def _prepare(self, asked: Asked, request: Request, exchange: Exchange, answer: Answer) -> InferRequest:
        context = self._inference.context(lambda: request.headers, request.caller, request.id)
        generate = self._inference.prepare(asked, answer, context)
        exchange.on_cancel = generate.cancel
        exchange.on_behind = generate.fall_behind
        return generate

    def _generate(self, submit: _Submit, request: Request, params: Params, exchange: Exchange) -> None:
        """As :meth:`_read_and`, a long request on a thread."""
        if len(request.body) >= LONG_JSON:
            self._long.do(lambda look: self._read_long(request, params, look), submit, request, exchange)
            return
        self._read_and(read_generate, submit, request, params, exchange)

    def _read_long(self, request: Request, params: Params, look: Callable[[], None]) -> Asked:
        asked = self._read(partial(read_generate, look=look), request, params)
        self._inference.hold(asked)
        return asked

    def _read_and(self, read: _Read, submit: _Submit, request: Request, params: Params, exchange: Exchange) -> None:
        """Read the request and submit it; an error is the answer."""
        try:
            submit(self._read(read, request, params))
        except RepoAgentError as error:
            exchange.respond(error_response(error))

    def _read(self, read: _Read, request: Request, params: Params) -> Asked:
        model, version = params["model"], check_version(params["version"])
        metadata = self._inference.core.model_metadata(model, version)
        check_encoding(request)
        return read(request.body, metadata, model, version, self._max_input_size, self._inference.limits)


class _Once(WholeAnswer):
    """The answer of ``generate``: the content of the only response."""

    def __init__(self, mailbox: Mailbox, exchange: Exchange, request: Request, long: LongWork, write: _Write) -> None:
        super().__init__(mailbox, exchange, _ALL_JSON, request, long)
        self._write = write
        self._report = wanted_report(request)

    def _answer(self) -> Response:
        response = self._response
        if response is None or self._count != 1:
            return error_response(InternalError(_NOT_ONE))
        status, text = _written(response, self._write)
        return Response(status, text, headers=load_report(self._report), served=response)


class _Stream(Answer):
    """The answer of ``generate_stream``: an event for each response, sent when it comes; the first sets the status."""

    def __init__(self, mailbox: Mailbox, exchange: Exchange, report: bytes | None) -> None:
        super().__init__(mailbox)
        self._exchange = exchange
        self._report = report
        self.request: InferRequest | None = None
        """While it is being handed to the core, which may turn it away."""
        self._begun = False

    def deliver(self, response: InferResponse | None, final: bool) -> None:
        if response is not None and response.error is not None and self._is_refusal(response.error):
            refusal = error_response(response.error)
            refusal.served = response
            self._exchange.respond(refusal)
            return
        status, text = (200, b"") if response is None else _written(response)
        if (response is not None or final) and not self._begun:
            self._begun = True
            head = Response(status, content_type=EVENTS, headers=load_report(self._report), served=response)
            self._exchange.begin(head)
        if text:
            self._exchange.write(b"data: %b\n\n" % text)
        if final:
            self._exchange.end()

    def _is_refusal(self, error: RepoAgentError) -> bool:
        """The request was not let in, because its queue is full or the server stops, and no model has seen it."""
        request = self.request
        return request is not None and request.times is None and error.code is ErrorCode.UNAVAILABLE


def _written(response: InferResponse, write: _Write = write_generate) -> tuple[int, bytes]:
    """Status and JSON of one response."""
    try:
        if response.error is not None:
            raise response.error
        return 200, write(response)
    except RepoAgentError as error:
        return STATUS_OF[error.code], dumps({"error": client_text(error)})
    except Exception as error:  # a fault of ours must not leave the client without an answer
        answer = fault(error, "an answer of generate could not be written")
        return answer.status, bytes(answer.body)


_ASKED: Final = b"endpoint-load-metrics-format"
_TOLD: Final = b"endpoint-load-metrics"
_FAMILY: Final = "nv_trt_llm_kv_cache_block_metrics"
_LABEL: Final = "kv_cache_block_type"


def wanted_report(request: Request) -> bytes | None:
    """The form of report that the request asks for; None if its client may not see how busy other models are."""
    caller = request.caller
    return request.header(_ASKED) if caller is None or caller.may_all(Right.METADATA) else None


def load_report(form: bytes | None) -> list[Header]:
    """The header with the report in ``form``: ``text`` or ``json``; empty for any other.

    The numbers come from the gauges ``nv_trt_llm_kv_cache_block_metrics`` that a model makes; without them there is
    no report.
    """
    if form not in (b"text", b"json"):
        return []
    blocks = _blocks()
    if not {"used", "max", "tokens_per"} <= blocks.keys():
        return []
    utilization = blocks["used"] / blocks["max"] if blocks["max"] > 0 else 0.0
    capacity = int(blocks["max"] * blocks["tokens_per"])
    if form == b"json":
        named = {"kv_cache_utilization": utilization, "max_token_capacity": capacity}
        return [(_TOLD, b"JSON " + dumps({"named_metrics": named}))]
    text = f"named_metrics.kv_cache_utilization={utilization:.6f}, named_metrics.max_token_capacity={capacity}"
    return [(_TOLD, b"TEXT " + text.encode())]


def _blocks() -> dict[str, float]:
    """The gauges by what they count."""
    series = [metric for metric in REGISTRY.series(_FAMILY) if metric.kind is not MetricKind.HISTOGRAM]
    return {metric.labels[_LABEL]: metric.value for metric in series if _LABEL in metric.labels}
