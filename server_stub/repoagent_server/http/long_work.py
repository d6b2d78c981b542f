"""Work on large requests and answers that would keep an event loop from everybody else."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from traceback import clear_frames
from typing import Final, TypeVar

from repoagent.errors import CancelledError
from repoagent_server.http.messages import Exchange, Request
from repoagent_server.http.service import answer_to

_T = TypeVar("_T")
_TURN: Final = 0.001
_PAUSE: Final = 0.0001
"""Seconds of work, and of rest after them in which others get the interpreter."""


class LongWork:
    """Has work done on ``pool`` and goes on with its result on the event loop.

    The pool has one thread, so large requests wait for each other: two at once would only fight for the interpreter,
    which small requests want as well.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: Executor) -> None:
        self._loop = loop
        self._pool = pool

    def do(
        self,
        work: Callable[[Callable[[], None]], _T],
        then: Callable[[_T], None],
        request: Request,
        exchange: Exchange,
        fail: Callable[[Exception], None] | None = None,
    ) -> None:
        """Call ``work`` on the thread, with what it should call now and then, and ``then`` on the loop.

        What it is given raises once the client has gone. ``fail`` gets an error, of either; without it, that is the
        answer to ``request``.
        """
        look = _Look(exchange)

        def answer(error: Exception) -> None:
            if fail is None:
                exchange.respond(answer_to(error, request))
            else:
                fail(error)

        def attempt() -> _T:
            look()
            try:
                return work(look)
            except Exception as error:
                clear_frames(error.__traceback__)  # What it had made of a large request is freed here, not on the loop.
                raise

        def deliver(future: "Future[_T]") -> None:
            look.end()
            try:
                then(future.result())
            except Exception as error:
                answer(error)
            finally:
                del future  # else it, the error and this frame are a cycle, which holds the request's memory

        try:
            future = self._pool.submit(attempt)
        except RuntimeError as error:  # this machine has no thread left
            answer(error)
            return
        future.add_done_callback(lambda done: self._loop.call_soon_threadsafe(deliver, done))


class _Look:
    """What work calls: it lets others have the interpreter, and ends what no client waits for any more."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._former, exchange.on_cancel = exchange.on_cancel, self._cancel
        self._gone = False
        self._turn = time.monotonic()

    def __call__(self) -> None:
        if self._gone:
            raise CancelledError("the client has gone")
        if time.monotonic() - self._turn > _TURN:
            time.sleep(_PAUSE)  # or the event loop waits 5 ms for the interpreter at each of its steps
            self._turn = time.monotonic()

    def end(self) -> None:
        self._exchange.on_cancel = self._former

    def _cancel(self) -> None:
        self._gone = True
        if self._former is not None:
            self._former()
