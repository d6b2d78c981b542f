"""Answers in the order of the requests, whatever the order in which they are ready."""

import threading
from collections import deque

from repoagent.serving.requests.request import InferRequest, InferResponse, ResponseSender
from repoagent.serving.scheduling.forwarding import ForwardingScheduler
from repoagent.serving.scheduling.scheduler import Scheduler

__all__ = ["OrderKeeper", "OrderedScheduler"]


class _HeldSender:
    """The sender of one request in the row: it keeps the answers until those before it are out."""

    def __init__(self, keeper: "OrderKeeper", request: InferRequest) -> None:
        self._keeper = keeper
        self._request = request
        self.inner = request.redirect(self)
        self.ready: deque[tuple[InferResponse | None, bool]] = deque()

    def send(self, response: InferResponse | None, final: bool) -> None:
        if final:
            self._request.redirect(self.inner)
        self._keeper.deliver(self, response, final)


class OrderKeeper:
    """The row of requests whose answers are still to come."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._row: deque[_HeldSender] = deque()
        self._delivering = False

    def enroll(self, request: InferRequest) -> None:
        """Put ``request`` at the end of the row: its answers go out after those to all before it."""
        with self._lock:
            self._row.append(_HeldSender(self, request))

    def deliver(self, place: _HeldSender, response: InferResponse | None, final: bool) -> None:
        """Keep an answer, and send whatever can be sent now unless another thread is doing that."""
        with self._lock:
            place.ready.append((response, final))
            if self._delivering:
                return
            self._delivering = True
        while (item := self._next()) is not None:
            inner, response, final = item
            inner.send(response, final)

    def _next(self) -> tuple[ResponseSender, InferResponse | None, bool] | None:
        with self._lock:
            first = self._row[0] if self._row else None
            if first is None or not first.ready:
                self._delivering = False
                return None
            response, final = first.ready.popleft()
            if final:
                self._row.popleft()
            return first.inner, response, final


class OrderedScheduler(ForwardingScheduler):
    """Another scheduler, whose answers go out in the order in which the requests came in."""

    def __init__(self, model_name: str, inner: Scheduler) -> None:
        super().__init__(model_name, inner)
        self._keeper = OrderKeeper()

    def executes_here(self, patient: bool) -> bool:
        return False

    def submit(self, request: InferRequest) -> None:
        self._keeper.enroll(request)
        self._inner.submit(request)
