"""Where the coroutines of a Python model run."""

import threading
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, Final

__all__ = ["EventLoop"]

_PATIENCE_SECONDS: Final = 5.0


class EventLoop:
    """An asyncio loop on a thread of its own."""

    def __init__(self, name: str) -> None:
        import asyncio  # Most models never do this, and it takes a while.

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._running: set[Future[None]] = set()
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, None]) -> "Future[None]":
        """Run ``coroutine`` beside others."""
        import asyncio

        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def close(self) -> None:
        """Let the coroutines end. Those that do not are cancelled, and left behind if they do not hear of it."""
        import asyncio

        if wait(list(self._running), _PATIENCE_SECONDS).not_done:
            cancelling = asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop)
            with suppress(TimeoutError):
                cancelling.result(2 * _PATIENCE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    async def _cancel_all(self) -> None:
        import asyncio

        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_PATIENCE_SECONDS)
