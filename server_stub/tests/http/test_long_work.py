"""Work on large requests is done beside the event loop."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from repoagent_server.http.long_work import LongWork
from repoagent_server.http.messages import Frame, Request

from repoagent.errors import InvalidArgumentError


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
