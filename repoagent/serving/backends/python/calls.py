"""Waiting for the responses to a request that a model made of another one."""

import queue
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from repoagent.serving.request import InferResponse

if TYPE_CHECKING:
    import asyncio

__all__ = ["AsyncResponses", "ResponseQueue"]

_Item = tuple[InferResponse | None, bool]


class ResponseQueue:
    """A sender whose responses are taken by iterating, on another thread than the one that sends."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()

    def send(self, response: InferResponse | None, final: bool) -> None:
        self._items.put((response, final))

    def __iter__(self) -> Iterator[InferResponse]:
        final = False
        while not final:
            response, final = self._items.get()
            if response is not None:
                yield response


class AsyncResponses:
    """The same for a coroutine: responses sent from any thread arrive on its event loop."""

    def __init__(self, loop: "asyncio.AbstractEventLoop") -> None:
        import asyncio  # Most models never do this, and it takes a while.

        self._loop = loop
        self._items: asyncio.Queue[_Item] = asyncio.Queue()

    def send(self, response: InferResponse | None, final: bool) -> None:
        self._loop.call_soon_threadsafe(self._items.put_nowait, (response, final))

    async def __aiter__(self) -> AsyncIterator[InferResponse]:
        final = False
        while not final:
            response, final = await self._items.get()
            if response is not None:
                yield response
