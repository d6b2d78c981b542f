"""Answers to OpenAI's API: what several requests to the core have brought, as one document or as events."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from repoagent.errors import InternalError, RepoAgentError
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.tensor import Array
from repoagent_server.codec.long_json import LONG_JSON
from repoagent_server.handlers import inference
from repoagent_server.http.generate import load_report
from repoagent_server.http.long_work import LongWork
from repoagent_server.http.messages import EVENTS, Exchange, Request, Response, json_response
from repoagent_server.openai.answer import Answer, log_prob_bytes
from repoagent_server.openai.embeddings import VectorRequest, embedding_of, tokens_of
from repoagent_server.openai.errors import error_object, status_of
from repoagent_server.openai.tokenizing import TokenRequest

logger: Final = logging.getLogger(__name__)


def openai_error(error: Exception | str, status: int | None = None) -> Response:
    """An error in OpenAI's form. A fault of ours is logged."""
    if not isinstance(error, RepoAgentError | str):
        logger.error("a request to OpenAI's API failed: %s", error, exc_info=error)
        error = InternalError(f"unexpected {type(error).__name__}; the server's log has the details")
    if status is None:
        status = 400 if isinstance(error, str) else status_of(error)
    return json_response(error_object(error, status), status)


class Group:
    """Several requests to the core with one answer. What comes after an error is dropped."""

    def __init__(self, request: Request, exchange: Exchange, long: LongWork) -> None:
        """``long``: where a long answer to ``request`` is written."""
        self._request = request
        self._exchange = exchange
        self._long = long
        self.requests: Sequence[InferRequest] = ()
        self.failed = False
        self.served: InferResponse | None = None
        """The last response."""
        self._later: deque[tuple[int, InferResponse | None, bool]] | None = None
        """What comes while something is written beside the event loop; None if nothing is."""

    def cancel(self) -> None:
        """The client has gone, or does not want the rest."""
        for request in self.requests:
            request.cancel()

    def fall_behind(self, behind: bool) -> None:
        """The client does not read its stream, or reads on."""
        for request in self.requests:
            request.fall_behind(behind)

    def deliver(self, number: int, response: InferResponse | None, final: bool) -> None:
        """Take a response to request ``number``."""
        if self.failed:
            return
        if self._later is not None:
            self._later.append((number, response, final))
            return
        if response is not None:
            self.served = _after(self.served, response)
        try:
            if response is not None and response.error is not None:
                raise response.error
            self._take(number, response, final)
        except Exception as error:
            self._give_up(error, running=len(self.requests) > 1 or not final)

    def _take(self, number: int, response: InferResponse | None, final: bool) -> None:
        raise NotImplementedError

    def _write(self, size: int, write: Callable[[], bytes], then: Callable[[bytes], None]) -> None:
        """Call ``then`` with what ``write`` makes of ``size`` bytes; if they are many, beside the event loop."""
        if size < LONG_JSON:
            then(write())
            return

        def go_on(written: bytes) -> None:
            later, self._later = self._later or (), None
            then(written)
            for one in later:
                self.deliver(*one)

        self._later = deque()
        self._long.do(lambda _: write(), go_on, self._request, self._exchange, self._give_up)

    def _give_up(self, error: Exception, running: bool = True) -> None:
        """Answer ``error``; ``running``: whether there may be requests to cancel."""
        self.failed, self._later = True, None
        if running:
            self.cancel()
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._respond(openai_error(error))

    def _respond(self, response: Response) -> None:
        response.served = self.served
        self._exchange.respond(response)


def _after(former: InferResponse | None, response: InferResponse) -> InferResponse:
    """``response``, with the receipts of both: a reload may have come between the parts of an answer."""
    if former is not None and former.receipt != response.receipt:
        receipts = dict.fromkeys(f"{former.receipt}, {response.receipt}".split(", "))
        response.receipt = ", ".join(filter(None, receipts))
    return response


class Part(inference.Answer):
    """The sender of one of the requests that an answer is made of."""

    __slots__ = ("_group", "_number")

    def __init__(self, box: inference.Mailbox, group: Group, number: int) -> None:
        super().__init__(box)
        self._group = group
        self._number = number

    def deliver(self, response: InferResponse | None, final: bool) -> None:
        self._group.deliver(self._number, response, final)


class TextGroup(Group):
    """Texts, as ``answer`` writes them. ``report``: the form of report that the client wants of the server's load."""

    def __init__(
        self, answer: Answer, report: bytes | None, request: Request, exchange: Exchange, long: LongWork
    ) -> None:
        super().__init__(request, exchange, long)
        self._answer = answer
        self._report = report


class DocumentGroup(TextGroup):
    """Texts as one document."""

    def _take(self, number: int, response: InferResponse | None, final: bool) -> None:
        self._answer.take(number, response, final=final)
        if self._answer.over:
            self._write(self._answer.held, self._answer.document, self._finish)

    def _finish(self, document: bytes) -> None:
        headers = load_report(self._report)
        self._respond(Response(200, document, headers=headers, tokens=self._answer.tokens))


class StreamGroup(TextGroup):
    """Texts as events, each sent when it comes; the first response sets the status."""

    _head: Response | None = None

    def _take(self, number: int, response: InferResponse | None, final: bool) -> None:
        if response is None or (size := log_prob_bytes(response)) < LONG_JSON:
            self._send(self._answer.take(number, response, final=final))
        else:
            self._write(size, partial(self._answer.take, number, response, final=final), self._send)

    def _send(self, events: bytes) -> None:
        if self._head is None and (events or self._answer.over):
            headers = [(b"Cache-Control", b"no-cache"), *load_report(self._report)]
            self._head = Response(200, content_type=EVENTS, headers=headers, served=self.served)
            self._exchange.begin(self._head)
        if events:
            self._exchange.write(events)
        if self._answer.over and self._head is not None:
            self._end(self._head)

    def _fail(self, error: Exception) -> None:
        response = openai_error(error)
        if self._head is None:
            self._respond(response)
            return
        self._exchange.write(self._answer.failure(bytes(response.body)))
        self._end(self._head)

    def _end(self, head: Response) -> None:
        head.tokens = self._answer.tokens
        self._exchange.end()


class SingleGroup(Group):
    """One response as what ``asked`` makes of it."""

    def __init__(self, asked: TokenRequest, request: Request, exchange: Exchange, long: LongWork) -> None:
        super().__init__(request, exchange, long)
        self._asked = asked

    def _take(self, number: int, response: InferResponse | None, final: bool) -> None:
        if final and self.served is not None:
            self._respond(Response(200, self._asked.document(self.served)))


class VectorGroup(Group):
    """What is made of embeddings, as one document."""

    def __init__(self, asked: VectorRequest, request: Request, exchange: Exchange, long: LongWork) -> None:
        super().__init__(request, exchange, long)
        self._asked = asked
        self._vectors: dict[int, Array] = {}
        self._tokens = 0
        self._open = len(asked.texts)

    def _take(self, number: int, response: InferResponse | None, final: bool) -> None:
        if response is not None:
            self._vectors[number] = embedding_of(response)
            self._tokens += tokens_of(response)
        self._open -= final
        if not self._open:
            if len(self._vectors) < len(self._asked.texts):
                raise InternalError(f"model '{self._asked.model}' has answered without an output")
            vectors = [self._vectors[index] for index in range(len(self._vectors))]
            size = sum(vector.nbytes for vector in vectors)
            self._write(size, partial(self._asked.document, vectors, self._tokens), self._finish)

    def _finish(self, document: bytes) -> None:
        self._respond(Response(200, document, tokens=(self._tokens, 0) if self._tokens else None))
