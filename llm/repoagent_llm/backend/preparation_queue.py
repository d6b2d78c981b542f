"""Threads for what takes long before a request can be generated: cutting long texts into tokens, compiling guides."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from repoagent.errors import CancelledError, OverloadedError, RepoAgentError, UnavailableError
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.requests.senders import answer_error

_STACK: Final = 128 << 20
"""Of a thread, in address space: compilers of grammars call themselves once for each rule of a chain."""
_MOST_WAITING: Final = 256
_starting: Final = threading.Lock()
"""The size of a stack is one for the whole process."""


@dataclass(slots=True, eq=False)
class _Job:
    request: InferRequest
    work: Callable[[], None]


class PreparationQueue:
    """Does jobs in the order of their arrival, on at most ``threads`` threads, which begin when they are needed.

    A request that is cancelled while it waits is answered at once; what waits when the queue closes gets an error.
    """

    def __init__(self, name: str, version: str, *, threads: int) -> None:
        self._name = name
        self._version = version
        self._most = threads
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._threads = 0
        self._idle = 0
        self._closed = False

    def put(self, request: InferRequest, work: Callable[[], None]) -> None:
        """Let ``work``, which must not raise, be done; or answer ``request`` with why it is not."""
        job = _Job(request, work)
        request.on_cancel = lambda: self._give_up(job, CancelledError("request cancelled"))
        refusal = self._add(job)
        if refusal is not None:
            answer_error(request, refusal, self._version)
        elif request.cancelled:
            request.on_cancel()

    def _add(self, job: _Job) -> RepoAgentError | None:
        with self._changed:
            if self._closed:
                return UnavailableError(f"'{self._name}' is unloaded")
            if len(self._jobs) >= _MOST_WAITING:
                return OverloadedError(
                    f"'{self._name}' has {_MOST_WAITING} long requests that wait, please try again later"
                )
            if self._idle <= len(self._jobs) and self._threads < self._most and not self._start() and not self._threads:
                return OverloadedError(
                    f"'{self._name}' cannot start a thread for a long request, please try again later"
                )
            self._jobs.append(job)
            self._changed.notify()
        return None

    def _start(self) -> bool:
        """Start one more thread; False if the machine has none."""
        with _starting:
            before = threading.stack_size(_STACK)
            try:
                threading.Thread(target=self._run, name=f"repoagent-{self._name}", daemon=True).start()
            except RuntimeError:
                return False
            finally:
                threading.stack_size(before)
        self._threads += 1
        return True

    def close(self) -> None:
        """Answer what waits; what is being done goes on."""
        with self._changed:
            self._closed = True
            left = list(self._jobs)
            self._changed.notify_all()
        for job in left:
            self._give_up(job, UnavailableError(f"'{self._name}' is unloaded"))

    def _give_up(self, job: _Job, error: RepoAgentError) -> None:
        with self._changed:
            if job not in self._jobs:
                return  # someone has taken it
            self._jobs.remove(job)
        answer_error(job.request, error, self._version)

    def _run(self) -> None:
        while (job := self._next()) is not None:
            job.work()
            del job  # While this thread waits, it keeps no request's texts in memory.

    def _next(self) -> _Job | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._jobs or self._closed)
            self._idle -= 1
            return self._jobs.popleft() if self._jobs else None
