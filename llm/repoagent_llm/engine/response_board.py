"""ResponseBoard: responses on their way from the engine's thread to callers."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

from repoagent_llm.types.executor_errors import ExecutorStoppedError
from repoagent_llm.types.result import Response


class ResponseBoard:
    """Responses by request. A request is known from ``open`` until its final response has been taken."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ready: dict[int, deque[tuple[int, Response]]] = {}
        # What was posted and is not sorted by request yet: callers' threads do that, not the engine's.
        self._posted: list[Response] = []
        self._sorted = 0
        self._count = 0
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether there will be no more responses."""
        return self._stopped

    def open(self, request_ids: Iterable[int]) -> None:
        """Make requests known; raises when stopped, as no one would answer them."""
        with self._changed:
            self._check()
            for request_id in request_ids:
                self._ready[request_id] = deque()

    def post(self, responses: Sequence[Response]) -> None:
        """Add responses, in order."""
        with self._changed:
            self._posted += responses
            self._count += len(responses)
            self._changed.notify_all()

    def stop(self) -> None:
        """End every wait; later calls raise."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def count(self, request_id: int | None = None) -> int:
        """How many responses are ready."""
        with self._changed:
            self._check()
            return self._count if request_id is None else len(self._of(request_id))

    def take_any(self, timeout: float | None) -> list[Response]:
        """All that is ready, of all requests, in the order of posting; waits for the first."""
        with self._changed:
            self._check()
            self._wait(lambda: self._count > 0, timeout)
            if len(self._posted) == self._count:  # nothing is left that was sorted for someone else
                return self._take_posted()
            self._sort()
            taken = [entry for request_id in list(self._ready) for entry in self._drain(request_id)]
            taken.sort(key=itemgetter(0))
            return [response for _, response in taken]

    def take(self, request_ids: Sequence[int], timeout: float | None) -> list[list[Response]]:
        """For each request what is ready, waiting for at least one response of each within the timeout.

        What was taken before a stop is returned, not lost.
        """
        with self._changed:
            self._check()
        deadline = None if timeout is None else time.monotonic() + timeout
        return [self._take_one(request_id, deadline) for request_id in request_ids]

    def _take_one(self, request_id: int, deadline: float | None) -> list[Response]:
        with self._changed:
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            self._wait(lambda: request_id not in self._ready or bool(self._of(request_id)), remaining)
            if request_id not in self._ready:  # perhaps another thread took its last response meanwhile
                text = f"ReqId {request_id} has already been processed and was terminated."
                return [Response(request_id, text)]
            return [response for _, response in self._drain(request_id)]

    def _wait(self, ready: Callable[[], bool], timeout: float | None) -> None:
        self._changed.wait_for(lambda: self._stopped or ready(), timeout)

    def _of(self, request_id: int) -> Sequence[tuple[int, Response]]:
        self._sort()
        return self._ready.get(request_id, ())

    def _sort(self) -> None:
        for response in self._posted:
            self._ready[response.request_id].append((self._sorted, response))
            self._sorted += 1
        self._posted.clear()

    def _take_posted(self) -> list[Response]:
        taken, self._posted, self._count = self._posted, [], 0
        for response in taken:
            if response.is_last:
                del self._ready[response.request_id]
        return taken

    def _drain(self, request_id: int) -> list[tuple[int, Response]]:
        waiting = self._ready.get(request_id)
        if not waiting:
            return []
        taken = list(waiting)
        waiting.clear()
        self._count -= len(taken)
        if taken[-1][1].is_last:
            del self._ready[request_id]
        return taken

    def _check(self) -> None:
        if self._stopped:
            raise ExecutorStoppedError("Shutdown called")
