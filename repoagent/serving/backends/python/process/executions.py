"""In the child: what the server gave it to do, one execution after the other, and when the answers go back."""

import mmap
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from repoagent.serving.requests.request import InferResponse

__all__ = ["Answered", "Batch", "Executions", "Respond", "Response"]

_NUMBER: Final = struct.Struct("Q")
"""In the machine's own order: so it is written in one step."""
_KEEP_NS: Final = 1_000_000
"""How long an answer may wait for those of the next executions."""
_KEEP_BYTES: Final = 256 << 10

Response = tuple[int, InferResponse | None, int]
Respond = Callable[[int, InferResponse | None, int], None]
"""Takes a response to the request of that number, and whether it is the last one."""
Answered = Callable[[list[Response], list[list[int]], bool], None]
"""Takes responses, the numbers and moments of the executions that made them, and whether those were the last."""


class Batch:
    """The responses that go back when ``execute`` has returned; ``late`` sends those that come after that."""

    __slots__ = ("_late", "_lock", "_responses")

    def __init__(self, late: Respond) -> None:
        self._late = late
        self._lock = threading.Lock()
        self._responses: list[Response] | None = []

    def send(self, number: int, response: InferResponse | None, final: int) -> None:
        """Take one."""
        with self._lock:
            if self._responses is not None:
                self._responses.append((number, response, final))
                return
        self._late(number, response, final)

    def close(self) -> list[Response]:
        """What there is; whatever comes now is late."""
        with self._lock:
            responses, self._responses = self._responses, None
        return responses or []


class Executions:
    """What the server has sent at once. ``run`` executes one of them, ``answer`` sends answers, ``returned`` the
    numbers of requests that are not going to be executed.

    The first begins at once; the others can be given back until they begin. With several, each is noted in the file
    ``progress_fd`` before it begins: if this process ends meanwhile, the server knows which ones another one may do.
    """

    def __init__(
        self,
        progress_fd: int,
        run: Callable[[list[Any], Any], list[Response]],
        answer: Answered,
        returned: Callable[[list[int]], None],
    ) -> None:
        self._progress = mmap.mmap(progress_fd, _NUMBER.size)
        self._run = run
        self._answer = answer
        self._returned = returned
        self._waiting: deque[list[Any]] = deque()
        self._wanted_back = 0
        """The last request that the server has asked back; it may not have arrived yet."""
        self._lock = threading.Lock()
        """Held while answers are sent, and what goes back: the answers that end a message must be the last ones."""
        self._ready: list[Response] = []
        self._times: list[list[int]] = []
        self._size = 0

    def perform(self, executions: list[list[Any]], payload: Any) -> None:
        """Do all, except what is given back meanwhile, and answer what is ready about every millisecond."""
        several = len(executions) > 1
        self._waiting.extend(executions[1:])
        if several and executions[-1][0][0] <= self._wanted_back:
            self._give_back()
        bodies: list[Any] | None = executions[0]
        while bodies is not None:
            number = bodies[0][0]
            if several:
                _NUMBER.pack_into(self._progress, 0, number)
            begin = time.monotonic_ns()
            responses = self._run(bodies, payload)
            end = time.monotonic_ns()
            with self._lock:
                self._ready += responses
                self._times.append([number, begin, end])
                if self._waiting:
                    self._size += _size(responses)
                    if end - self._times[0][1] > _KEEP_NS or self._size > _KEEP_BYTES:
                        self._send(last=False)
            bodies = self._next()
        with self._lock:
            self._send(last=True)

    def _next(self) -> list[Any] | None:
        try:
            return self._waiting.popleft()
        except IndexError:  # Also if it was given back just now.
            return None

    def _send(self, *, last: bool) -> None:
        """Answer what is ready. Holds the lock."""
        responses, times = self._ready, self._times
        self._ready, self._times, self._size = [], [], 0
        self._answer(responses, times, last)

    def give_back(self, last: int) -> None:
        """Begin nothing more up to request ``last``, also of what arrives later: the server asks on another channel
        than it sends executions on. Answers what is ready, too. On any thread.

        The server asks for it when an execution takes long.
        """
        self._wanted_back = last  # Before looking: what arrives meanwhile is compared with it.
        self._give_back()

    def _give_back(self) -> None:
        with self._lock:
            numbers = self._withdraw()
            if self._times:
                self._send(last=False)
            if numbers:
                self._returned(numbers)

    def _withdraw(self) -> list[int]:
        """The numbers of what waits and is wanted back, in order; none of it waits any more. Holds the lock."""
        numbers: list[int] = []
        try:
            while self._waiting[-1][0][0] <= self._wanted_back:
                numbers += [body[0] for body in self._waiting.pop()]
        except IndexError:  # There is nothing left, also if it has begun just now.
            pass
        return numbers[::-1]


def _size(responses: list[Response]) -> int:
    return sum(
        tensor.array.nbytes
        for _, response, _ in responses
        if response is not None
        for tensor in response.outputs.values()
    )
