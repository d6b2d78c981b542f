"""``POST v2/models/M/infer``: a request into the core, its one response back to the client."""

import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final

from repoagent.errors import InvalidArgumentError, RepoAgentError, UnsupportedError
from repoagent.serving.requests.request import Asked, InferResponse
from repoagent.serving.requests.tensor import BY_CONFIG_NAME, Array, Tensor, array_at
from repoagent_server.codec.binary import BY_TYPE, Buffer, JsonKind, RequestLabel, TypeInfo, bytes_array
from repoagent_server.codec.infer_request import OutputEncoding, read_infer
from repoagent_server.codec.infer_response import is_long, write_infer
from repoagent_server.codec.long_json import LONG_JSON
from repoagent_server.codec.request_templates import RequestTemplates
from repoagent_server.handlers.inference import Answer, Inference, Mailbox, check_version
from repoagent_server.http.compression import CodedBodies
from repoagent_server.http.long_work import LongWork
from repoagent_server.http.messages import OCTETS, Exchange, Request, Response, error_response
from repoagent_server.http.service import Params, answer_to, fault

_DECOUPLED: Final = "HTTP end point doesn't support models with decoupled transaction policy"
_NUMBER: Final = re.compile(rb"\s*([+-]?[0-9]+)")
_DIGITS: Final = 18
_LENGTH: Final = b"Inference-Header-Content-Length"


class InferRoute:
    """Translates between HTTP and the core. One per event loop."""

    def __init__(self, inference: Inference, long: LongWork, coded: CodedBodies) -> None:
        self._inference = inference
        self._coded = coded
        self._mailbox = inference.mailbox
        self._long = long
        self._known = RequestTemplates()

    def __call__(self, request: Request, params: Params, exchange: Exchange) -> None:
        frame = request.frame
        try:
            if frame.accepts is not None:
                exchange = self._coded.answering(request, exchange)
            if frame.encoding is not None and self._coded.decode(
                request, lambda decoded: self(decoded, params, exchange), exchange
            ):
                return
            read = self._read(request, params, exchange)
            if read is not None:
                self._submit(*read, request, exchange)
        except Exception as error:
            exchange.respond(answer_to(error, request))

    def _submit(self, asked: Asked, form: OutputEncoding, request: Request, exchange: Exchange) -> None:
        context = self._inference.context(lambda: request.headers, request.frame.caller, request.id)
        reply = _Reply(self._mailbox, exchange, form, request, self._long)
        infer = self._inference.prepare(asked, reply, context, form.requested, _DECOUPLED)
        exchange.on_cancel = infer.cancel
        self._inference.core.submit(infer)

    def _read(self, request: Request, params: Params, exchange: Exchange) -> tuple[Asked, OutputEncoding] | None:
        """What is asked, and how the answer is written; None if that is long, and submitted later."""
        model, version = params["model"], check_version(params["version"])
        inference, frame, body = self._inference, request.frame, request.body
        regions = inference.regions(frame.caller)
        try:
            if frame.encoding is not None:
                _check_encoding(frame.encoding)
            length = len(body) if frame.json_length is None else _json_length(frame.json_length, len(body))
            if length == 0:
                return _read_raw(body, inference.core.model_config(model, version), model, version)
            known = self._known.read(body, length, model, version) if length < LONG_JSON else None
            if known is not None:
                return known
            if not _is_long(body, length):
                read = read_infer(body, length, model, version, regions, inference.limits)
                self._known.remember(body, length, *read)
                return read
            inference.core.model_metadata(model, version)
        except RepoAgentError as error:
            inference.unreadable(error, frame.caller, model, version)
            raise

        def read_long(look: Callable[[], None]) -> tuple[Asked, OutputEncoding]:
            try:
                read = read_infer(body, length, model, version, regions, inference.limits, look)
                inference.hold(read[0])
                return read
            except RepoAgentError as error:
                inference.unreadable(error, frame.caller, model, version)
                raise

        self._long.do(read_long, lambda made: self._submit(*made, request, exchange), request, exchange)
        return None


def _is_long(body: Buffer, length: int) -> bool:
    """Whether a request whose first ``length`` bytes are JSON takes long to read: elements of BYTES are single objects.

    The name of that type could be written with escapes.
    """
    if length >= LONG_JSON or len(body) < LONG_JSON:
        return length >= LONG_JSON
    head = bytes(body[:length])
    return b"BYTES" in head or b"\\" in head


def _check_encoding(encoding: bytes) -> None:
    if encoding.lower() not in (b"", b"identity"):
        raise UnsupportedError("Unsupported compression type")


def _json_length(text: bytes, length: int) -> int:
    """How many of the ``length`` bytes of the body are JSON, by the header's ``text``."""
    value = _leading_number(text)
    if not 0 <= value <= length:
        raise InvalidArgumentError(
            f"inference header size should be in range (0, {length}), got: {text.decode('latin-1')}"
        )
    return value


def _leading_number(text: bytes) -> int:
    """As C's ``atoi``, which Triton uses: what does not begin with a number is 0; one that nothing can be is -1."""
    match = _NUMBER.match(text)
    if match is None:
        return 0
    return int(match[1]) if len(match[1]) <= _DIGITS else -1


class WholeAnswer(Answer):
    """Takes what the core answers to one request. HTTP has room for exactly one response.

    It is written beside the event loop if that takes long.
    """

    __slots__ = ("_count", "_exchange", "_form", "_long", "_request", "_response")

    def __init__(
        self, mailbox: Mailbox, exchange: Exchange, form: OutputEncoding, request: Request, long: LongWork
    ) -> None:
        self._mailbox = mailbox
        self._exchange = exchange
        self._form = form
        self._request = request
        self._long = long
        self._response: InferResponse | None = None
        self._count = 0

    def deliver(self, response: InferResponse | None, final: bool) -> None:
        if response is not None:
            self._response = response
            self._count += 1
        if final:
            try:
                if self._response is not None and is_long(self._response, self._form):
                    self._long.do(lambda _: self._answer(), self._exchange.respond, self._request, self._exchange)
                    return
                answer = self._answer()
            except Exception as error:  # a fault of ours must not leave the client without an answer
                answer = fault(error, "the answer to an inference request could not be written")
            self._exchange.respond(answer)

    def _answer(self) -> Response:
        """What the client gets."""
        raise NotImplementedError


class _Reply(WholeAnswer):
    """The answer of ``infer``."""

    __slots__ = ()

    def _answer(self) -> Response:
        response = self._response
        if response is None or self._count != 1:
            answer = error_response(UnsupportedError(_DECOUPLED))
        elif response.error is not None:
            answer = error_response(response.error)
        else:
            try:
                pieces, parts = write_infer(response, self._form)
            except RepoAgentError as error:
                answer = error_response(error)
            else:
                answer = Response(200, pieces[0], parts=pieces[1:])
                if parts:
                    answer.content_type, answer.headers = OCTETS, [(_LENGTH, b"%d" % sum(map(len, pieces)))]
                    answer.parts = [*pieces[1:], *parts]
        answer.served = response
        return answer


def _read_raw(body: Buffer, config: Mapping[str, Any], model: str, version: str) -> tuple[Asked, OutputEncoding]:
    """A request whose whole body is the one input of the model (``Inference-Header-Content-Length: 0``).

    What the body leaves open (name, type, shape) is deduced from the model's ``config``.

    Raises:
        InvalidArgumentError: the model has several inputs, or its input's shape cannot be deduced.
    """
    label = RequestLabel(model)
    inputs = config["input"]
    if len(inputs) != 1:
        raise label.error(
            f"Raw request must only have 1 input (found 1) to be deduced but got {len(inputs)} inputs in '{model}' "
            "model configuration"
        )
    name = inputs[0]["name"]
    info = BY_TYPE[BY_CONFIG_NAME[inputs[0]["data_type"]]]
    dims = [int(size) for size in inputs[0]["dims"]]
    batch = [1] if int(config["max_batch_size"]) > 0 else []
    tensor = Tensor(info.data_type, _deduce(name, info, dims, batch, body, label))
    return Asked(model, {name: tensor}, version), OutputEncoding(default_binary=True)


def _deduce(name: str, info: TypeInfo, dims: list[int], batch: list[int], body: Buffer, label: RequestLabel) -> Array:
    open_axes = dims.count(-1)
    if open_axes > 1:
        raise label.error(
            f"The shape of the raw input '{name}' can not be deduced because there are more than one variable-sized "
            "dimension"
        )
    if info.json is JsonKind.STRING:
        if open_axes or prod(dims) != 1:
            raise label.error(f"For BYTE datatype raw input '{name}', the model must have input shape [1]")
        return bytes_array([bytes(body)]).reshape(batch + dims)
    size = len(body)
    left = size // (info.size * prod(length for length in dims if length != -1))
    shape = batch + [left if length == -1 else length for length in dims]
    expected = prod(shape) * info.size
    if expected != size:
        raise label.wrong_size("raw_input", expected, size)
    return array_at(body, 0, info.dtype, shape)
