"""Work on large requests and answers that would keep an event loop from everybody else."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from traceback import clear_frames
from typing import Final, TypeVar

from repoagent.errors import CancelledError
from repoagent_server.http.messages import Exchange, Request, Response
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
        refuse: Callable[[Exception], Response] | None = None,
    ) -> None:
        """Call ``work`` on the thread, with what it should call now and then, and ``then`` on the loop.

        What it is given raises once the client has gone. An error, of either, is the answer to ``request``, which
        ``refuse`` writes.
        """
        gone = threading.Event()
        exchange.on_cancel = gone.set

        turn = time.monotonic()

        def answer(error: Exception) -> None:
            exchange.respond(answer_to(error, request) if refuse is None else refuse(error))

        def look() -> None:
            nonlocal turn
            if gone.is_set():
                raise CancelledError("the client has gone")
            if time.monotonic() - turn > _TURN:
                time.sleep(_PAUSE)  # or the event loop waits 5 ms for the interpreter at each of its steps
                turn = time.monotonic()

        def attempt() -> _T:
            look()
            try:
                return work(look)
            except Exception as error:
                clear_frames(error.__traceback__)  # What it had made of a large request is freed here, not on the loop.
                raise

        def deliver(future: "Future[_T]") -> None:
            exchange.on_cancel = None
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
