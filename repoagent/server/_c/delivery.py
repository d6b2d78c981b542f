"""Responses on their way to futures."""

import threading
import time
from collections import deque
from typing import Any

from repoagent.errors import AlreadyExistsError
from repoagent.server._c.response import InferenceResponse
from repoagent.server._c.trace import InferenceTrace, TraceGuard
from repoagent.server.enums import ResponseCompleteFlag
from repoagent.serving.requests.request import InferRequest, InferResponse

__all__ = ["Delivery", "DeliverySender"]

Item = tuple[InferenceResponse | None, int]


class Delivery:
    """Matches responses with the futures that ask for them. Either side may come first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrived: deque[Item] = deque()
        self._waiting: Any = None

    def next_to(self, future: Any) -> None:
        """Give the next response to ``future``.

        Raises:
            AlreadyExistsError: an earlier future still waits.
        """
        with self._lock:
            if self._waiting is not None:
                raise AlreadyExistsError("cannot call GetNextResponse concurrently")
            if not self._arrived:
                self._waiting = future
                return
            item = self._arrived.popleft()
        _resolve(future, item)

    def put(self, item: Item) -> None:
        """Hand over one response."""
        with self._lock:
            future, self._waiting = self._waiting, None
            if future is None:
                self._arrived.append(item)
                return
        _resolve(future, item)


def _resolve(future: Any, item: Item) -> None:
    def settle() -> None:
        if not future.done():
            future.set_result(item)

    if hasattr(future, "get_loop"):
        future.get_loop().call_soon_threadsafe(settle)
    else:
        settle()


class DeliverySender:
    """Takes the core's responses to one request."""

    __slots__ = ("_delivery", "_guard", "_trace", "request")

    def __init__(self, delivery: Delivery, trace: InferenceTrace | None) -> None:
        self.request: InferRequest | None = None
        """The request that is answered; set when it is sure to be submitted."""
        self._delivery = delivery
        self._trace = trace
        self._guard = TraceGuard(trace) if trace is not None else None

    def send(self, response: InferResponse | None, final: bool) -> None:
        """See :class:`~repoagent.serving.requests.request.ResponseSender`."""
        classes = self.request.classes if self.request is not None else None
        made = InferenceResponse(response, self._guard, classes) if response is not None else None
        try:
            if self._trace is not None:
                self._follow(self._trace, response, final)
        finally:
            if final:
                # From now on only the responses keep the trace.
                self._guard = self._trace = self.request = None
            self._delivery.put((made, int(ResponseCompleteFlag.FINAL) if final else 0))

    def _follow(self, trace: InferenceTrace, response: InferResponse | None, final: bool) -> None:
        if response is not None:
            trace.answer(response)
        if final and self.request is not None:
            trace.end(self.request, time.monotonic_ns())
