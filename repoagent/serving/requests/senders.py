"""Response senders that the core puts between a model and the caller."""

import logging
import threading
import time
from collections.abc import Callable

from repoagent.errors import CancelledError, InternalError, RepoAgentError
from repoagent.serving.measuring.statistics import ExecutionTimes, FailureReason, ModelStatistics
from repoagent.serving.requests.request import InferRequest, InferResponse, RequestTrace
from repoagent.serving.requests.tensor import Reshaper

logger = logging.getLogger(__name__)


def answer_error(request: InferRequest, error: RepoAgentError, version: str = "") -> None:
    """Give ``request`` its one and only answer: ``error``.

    The error gives up its traceback: whose frames hold the request, which leads to who is answered, who holds the
    answer. The memory of a large request would stay until the garbage collector comes by.
    """
    _forget_frames(error)
    asked = request.asked
    request.send(InferResponse(request.model_name, version or asked.model_version, id=asked.id, error=error), True)


def _forget_frames(error: BaseException) -> None:
    """Drop the tracebacks of ``error`` and of all that led to it.

    These can lead in a circle: a model that raises the same object again, while what was made of it is handled, makes
    each the reason of the other.
    """
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        one = pending.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            pending += [one.__cause__, one.__context__]


class LayerSender:
    """A sender that a layer puts before those of ``request``, until the final answer."""

    __slots__ = ("_inner", "_request")

    def __init__(self, request: InferRequest) -> None:
        self._request = request
        self._inner = request.redirect(self)

    def withdraw(self) -> None:
        """Have answers go where they went before."""
        self._request.redirect(self._inner)

    def send(self, response: InferResponse | None, final: bool) -> None:
        """Pass an answer on; a layer's own does this last."""
        if final:
            self._request.redirect(self._inner)
        self._inner.send(response, final)


class TrackedSender:
    """Calls ``done`` after the final response of a request, and lets a faulty model send nothing after it."""

    __slots__ = ("_done", "_inner", "_request")

    def __init__(self, request: InferRequest, done: Callable[[], None]) -> None:
        self._request: InferRequest | None = request
        self._inner = request.redirect(self)
        self._done = done

    def send(self, response: InferResponse | None, final: bool) -> None:
        request = self._request
        if request is None:
            logger.error("a model answered a request after its final response; the answer is dropped")
            return
        if final:
            self._request = None
            request.redirect(self._inner)
        try:
            self._inner.send(response, final)
        except Exception:
            logger.exception("the sender of a request to model '%s' raised", request.model_name)
        finally:
            if final:
                self._done()


class TracingSender(LayerSender):
    """Reports the answers to a request to its trace."""

    __slots__ = ("_trace",)

    def __init__(self, request: InferRequest, trace: RequestTrace) -> None:
        super().__init__(request)
        self._trace = trace

    def send(self, response: InferResponse | None, final: bool) -> None:
        if response is not None:
            self._trace.answer(response)
        if final:
            self._request.trace = None
            self._trace.end(self._request, time.monotonic_ns())
        super().send(response, final)


class ReceiptSender(LayerSender):
    """Names the receipt of the version that answers."""

    __slots__ = ("_receipt",)

    def __init__(self, request: InferRequest, receipt: str) -> None:
        super().__init__(request)
        self._receipt = receipt

    def send(self, response: InferResponse | None, final: bool) -> None:
        if response is not None:
            response.receipt = self._receipt
        super().send(response, final)


class CollectingSender:
    """Keeps the single answer of a request for a caller that waits."""

    def __init__(self) -> None:
        # A bare lock that the final answer releases: an Event costs ten times as much.
        self._final = threading.Lock()
        self._final.acquire()
        self._responses: list[InferResponse] = []

    def send(self, response: InferResponse | None, final: bool) -> None:
        if response is not None:
            self._responses.append(response)
        if final:
            self._final.release()

    def result(self, model_name: str) -> InferResponse:
        """Wait for the end and return the one answer.

        Raises:
            RepoAgentError: the answer is an error.
            InternalError: a decoupled model sent none, or several.
        """
        self.finish()
        if len(self._responses) != 1:
            raise InternalError(
                f"model '{model_name}' sent {len(self._responses)} responses to a request that can take exactly one; "
                "use submit() for a decoupled model"
            )
        return self._responses[0]

    def finish(self) -> None:
        """Wait for the end, however many answers there are; raises an error that is one of them."""
        self._final.acquire()
        for response in self._responses:
            if response.error is not None:
                raise response.error


def submit_and_wait(submit: Callable[[InferRequest], None], request: InferRequest, model_name: str) -> InferResponse:
    """Give ``request`` to ``submit`` and return its one answer, or raise its error; its own sender hears nothing."""
    collector = CollectingSender()
    own = request.redirect(collector)
    try:
        submit(request)
        return collector.result(model_name)
    finally:
        request.redirect(own)


class RecordingSender(LayerSender):
    """Counts what a native backend instance answers. ``started_ns`` is when the request was handed to it."""

    __slots__ = ("_batch_size", "_decoupled", "_index", "_on_end", "_statistics", "ended", "started_ns")

    def __init__(
        self,
        request: InferRequest,
        statistics: ModelStatistics,
        *,
        batch_size: int,
        started_ns: int,
        decoupled: bool,
        on_end: Callable[[int], None] | None = None,
    ) -> None:
        """``on_end`` is called before the final answer goes out, with the moment."""
        super().__init__(request)
        self.ended = False
        """Whether the final answer has come."""
        self._statistics = statistics
        self._batch_size = batch_size
        self.started_ns = started_ns
        """When its execution began; the instance may know better later."""
        self._decoupled = decoupled
        self._on_end = on_end
        self._index = 0

    def send(self, response: InferResponse | None, final: bool) -> None:
        now = time.monotonic_ns()
        error = response.error if response is not None else None
        if self._decoupled:
            outcome = "empty_response" if response is None else "fail" if error else "success"
            output_start = response.output_start_ns or now if response is not None else now
            self._statistics.record_response(self._index, self.started_ns, now, outcome, output_start)
            if self._index == 0 and response is not None:
                self._statistics.record_first_response(now - self._request.arrival_ns)
            self._index += 1
        elif response is not None:
            self._index += 1
            if self._index > 1:
                logger.error("model '%s' is not decoupled and answers again; that is dropped", self._request.model_name)
                response, error = None, None
                if not final:
                    return
        if final:
            self.ended = True
            if self._on_end is not None:
                self._on_end(now)
            self._finish(error, now)
        super().send(response, final)

    def _finish(self, error: RepoAgentError | None, now: int) -> None:
        arrival = self._request.arrival_ns
        if error is None:
            times = ExecutionTimes(self.started_ns, self.started_ns, now, now)
            self._request.times = times
            self._statistics.record_success(self._batch_size, arrival, times)
            return
        cancelled = isinstance(error, CancelledError)
        self._statistics.record_failure(arrival, now, FailureReason.CANCELED if cancelled else FailureReason.BACKEND)


class ReshapingSender(LayerSender):
    """Gives the outputs of a model the shapes that clients see."""

    __slots__ = ("_reshaper",)

    def __init__(self, request: InferRequest, reshaper: Reshaper) -> None:
        super().__init__(request)
        self._reshaper = reshaper

    def send(self, response: InferResponse | None, final: bool) -> None:
        if response is not None and response.error is None:
            try:
                response.outputs = self._reshaper.to_client(response.outputs)
            except RepoAgentError as error:
                response.outputs, response.error = {}, error
        super().send(response, final)


def reshape(request: InferRequest, reshaper: Reshaper) -> None:
    """Have a model get ``request`` in its own shapes; answers have the shapes of clients."""
    if not request.placeholder:
        ReshapingSender(request, reshaper)
    request.inputs = reshaper.to_model(request.inputs)
