"""Work on large requests is done beside the event loop."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from repoagent_server.http.long_work import LongWork
from repoagent_server.http.messages import Frame, Request

from repoagent.errors import CancelledError, InvalidArgumentError


async def test_what_a_refused_request_held_is_freed_on_the_thread_that_read_it() -> None:
    freed: list[threading.Thread] = []

    class Large:
        def __del__(self) -> None:
            freed.append(threading.current_thread())

    def work(_look: Callable[[], None]) -> None:
        _large = Large()
        raise InvalidArgumentError("refused")

    class Exchange:
        on_cancel: Any = None

        def respond(self, _response: Any) -> None:
            answered.set()

    answered = asyncio.Event()
    with ThreadPoolExecutor(1) as pool:
        request = Request(b"POST", b"/", [], Frame(0), b"", False)
        LongWork(asyncio.get_running_loop(), pool).do(work, lambda _: None, request, Exchange())  # type: ignore[arg-type]
        await answered.wait()
    assert len(freed) == 1
    assert freed[0] is not threading.current_thread()


async def test_a_client_that_leaves_ends_the_work_and_what_ran_for_it_before() -> None:
    class Exchange:
        on_cancel: Any = None

    gone, cancelled, failures = threading.Event(), [], []
    exchange, ended = Exchange(), asyncio.Event()
    former = exchange.on_cancel = lambda: cancelled.append(True)

    def work(look: Callable[[], None]) -> None:
        assert gone.wait(60)
        look()

    def fail(error: Exception) -> None:
        failures.append(error)
        ended.set()

    with ThreadPoolExecutor(1) as pool:
        request = Request(b"POST", b"/", [], Frame(0), b"", False)
        LongWork(asyncio.get_running_loop(), pool).do(work, lambda _: None, request, exchange, fail)  # type: ignore[arg-type]
        exchange.on_cancel()
        gone.set()
        await ended.wait()
    assert cancelled == [True]
    assert isinstance(failures[0], CancelledError)
    assert exchange.on_cancel is former
