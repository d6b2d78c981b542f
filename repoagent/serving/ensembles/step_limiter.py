"""How many requests of one step may be at its member at a time: ``max_inflight_requests`` of an ensemble."""

import threading
from collections import deque
from collections.abc import Callable

from repoagent.errors import CancelledError
from repoagent.serving.ensembles.step_request import StepRequest
from repoagent.serving.requests.senders import answer_error

__all__ = ["StepLimiter"]


class StepLimiter:
    """Lets requests through to ``submit``, ``limit`` at a time; others stand in line. No thread waits here.

    One object per step, for all requests to the ensemble.
    """

    def __init__(self, limit: int, submit: Callable[[StepRequest], None]) -> None:
        self._limit = limit
        self._submit = submit
        self._lock = threading.Lock()
        self._inside = 0
        self._line: dict[StepRequest, Callable[[], None]] = {}
        self._due: deque[tuple[StepRequest, Callable[[], None]]] = deque()
        self._submitting = False

    def enter(self, request: StepRequest, left_line: Callable[[], None]) -> bool:
        """Submit ``request``, now or later; False if it has to stand in line.

        ``left_line`` is called once, when it does so no more: before it is submitted, or because it was cancelled.
        """
        request.on_cancel = lambda: self._withdraw(request)
        with self._lock:
            if self._inside >= self._limit:
                self._line[request] = left_line
            else:
                self._inside += 1
                request.inside = True
        if request.inside:
            self._submit(request)
        elif request.cancelled:
            self._withdraw(request)
        return request.inside

    def leave(self) -> None:
        """One that was submitted has ended: the next in line takes its place."""
        with self._lock:
            if not self._line:
                self._inside -= 1
                return
            request = next(iter(self._line))
            request.inside = True
            self._due.append((request, self._line.pop(request)))
            if self._submitting:
                return  # A member that answers at once is in the loop below: do not nest.
            self._submitting = True
        while True:
            with self._lock:
                if not self._due:
                    self._submitting = False
                    return
                request, left_line = self._due.popleft()
            left_line()
            self._submit(request)

    def _withdraw(self, request: StepRequest) -> None:
        """Answer a cancelled request that still stands in line."""
        with self._lock:
            left_line = self._line.pop(request, None)
        if left_line is not None:
            left_line()
            answer_error(request, CancelledError("request cancelled"))
