"""The responses to one request, for ``for`` and ``async for``."""

import asyncio
import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from repoagent.server.request import InferenceResponse, make_response
from repoagent.serving.requests.request import InferRequest, InferResponse

if TYPE_CHECKING:
    from repoagent.server.request import InferenceRequest

_SERIALS: Final = itertools.count(1)
_PATIENT: Final = 2


class _Habits:
    """What is known of one thread."""

    __slots__ = ("in_turn", "open", "patient")

    def __init__(self) -> None:
        self.open = 0
        """The number of the request whose answer it has not taken yet."""
        self.in_turn = 0
        self.patient = False


class Caller(threading.local):
    """The current thread. It is *patient* if it took its last answers, one by one, before it asked for the next.

    A patient thread executes the model itself: it would only sleep meanwhile. A thread that sends several requests
    before it looks for answers wants them executed at once, or in one batch. So does one whose answers go to other
    threads.
    """

    def __init__(self) -> None:
        self._habits = _Habits()  # To look for the thread's own costs more than anything else here.

    @property
    def patient(self) -> bool:
        """Whether it can be expected to wait for what it has just asked for."""
        return self._habits.patient

    def ask(self) -> int:
        """The thread sends a request; its number is for :meth:`hear`."""
        habits = self._habits
        if habits.open:
            habits.in_turn = 0
            habits.patient = False
        habits.open = serial = next(_SERIALS)
        return serial

    def hear(self, serial: int) -> None:
        """The thread took the final answer to that request, which may be another thread's."""
        habits = self._habits
        if serial == habits.open:
            habits.open = 0
            habits.in_turn += 1
            habits.patient = habits.in_turn >= _PATIENT


CALLER: Final = Caller()
"""That of whichever thread looks at it."""


class QueueSender:
    """Puts responses into the queue of an iterator, and into the user's if there is one, on the answering thread."""

    __slots__ = ("_more", "_queue", "_request")

    def __init__(self, request: "InferenceRequest", responses: "queue.SimpleQueue[InferenceResponse]") -> None:
        self._request = request
        self._queue = responses
        self._more: Any = request.response_queue

    def send(self, response: InferResponse | None, final: bool) -> None:
        made = make_response(self._request, response, final)
        self._queue.put(made)
        if self._more is not None:
            self._more.put(made)


class ResponseIterator:
    """The responses to a request, in order; it ends after the one whose ``final`` is set.

    Every response is given out once. With ``raise_on_error`` a response with an error is raised instead.
    """

    __slots__ = ("__weakref__", "_core_request", "_ended", "_raise_on_error", "_serial", "_take")

    def __init__(
        self,
        core_request: InferRequest,
        take: Callable[[], InferenceResponse],
        raise_on_error: bool = True,
        serial: int = 0,
    ) -> None:
        """``take`` gives the next response, when it is there; ``serial`` is the caller's number of the request."""
        self._core_request = core_request
        self._take = take
        self._raise_on_error = raise_on_error
        self._serial = serial
        self._ended = False

    def __iter__(self) -> "ResponseIterator":
        return self

    def __next__(self) -> InferenceResponse:
        if self._ended:
            raise StopIteration
        response = self._take()
        self._ended = response.final
        if response.final and self._serial:
            CALLER.hear(self._serial)
        if response.error is not None and self._raise_on_error:
            raise response.error
        return response

    def cancel(self) -> None:
        """Give the request up. It still gets a final response, unless it already had one."""
        self._core_request.cancel()


class AsyncQueueSender:
    """Puts responses into asyncio queues, from the thread of whatever answers."""

    __slots__ = ("_filling", "_late", "_loop", "_more", "_queue", "_request")

    def __init__(self, request: "InferenceRequest", responses: "asyncio.Queue[InferenceResponse]") -> None:
        self._request = request
        self._queue = responses
        self._more: Any = request.response_queue
        self._loop = asyncio.get_running_loop()
        self._late: deque[InferenceResponse] = deque()
        self._filling: asyncio.Task[None] | None = None

    def send(self, response: InferResponse | None, final: bool) -> None:
        """See :class:`~repoagent.serving.requests.request.ResponseSender`. Without effect once the loop is closed."""
        made = make_response(self._request, response, final)
        if asyncio._get_running_loop() is self._loop:
            # The loop itself has executed the model. To go through its selector would take longer than that.
            self._put(made)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._put, made)

    def _put(self, response: InferenceResponse) -> None:
        self._queue.put_nowait(response)
        if self._more is not None:
            self._put_into_users(response)

    def _put_into_users(self, response: InferenceResponse) -> None:
        """Put ``response`` into the user's queue, which may have to be emptied first."""
        if self._filling is None:
            try:
                self._more.put_nowait(response)
                return
            except asyncio.QueueFull:
                self._filling = asyncio.ensure_future(self._fill())
        self._late.append(response)

    async def _fill(self) -> None:
        while self._late:
            await self._more.put(self._late.popleft())
        self._filling = None


class AsyncResponseIterator:
    """The responses to a request for ``async for``, on the loop where the request was made."""

    __slots__ = ("__weakref__", "_core_request", "_ended", "_queue", "_raise_on_error")

    def __init__(
        self,
        core_request: InferRequest,
        responses: "asyncio.Queue[InferenceResponse]",
        raise_on_error: bool = True,
    ) -> None:
        self._core_request = core_request
        self._queue = responses
        self._raise_on_error = raise_on_error
        self._ended = False

    def __aiter__(self) -> "AsyncResponseIterator":
        return self

    async def __anext__(self) -> InferenceResponse:
        if self._ended:
            raise StopAsyncIteration
        if not self._queue.empty():
            await asyncio.sleep(0)  # A task whose model is quick must not have the loop for itself.
        response = await self._queue.get()
        self._ended = response.final
        if response.error is not None and self._raise_on_error:
            raise response.error
        return response

    def cancel(self) -> None:
        """Give the request up. It still gets a final response, unless it already had one."""
        self._core_request.cancel()
