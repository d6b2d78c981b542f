"""Waiting for the responses to a request that a model made of another one."""

from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

from repoagent.serving.backends.python.model.context import CoreAccess
from repoagent.serving.requests.request import InferRequest, InferResponse

if TYPE_CHECKING:
    pass

__all__ = ["AsyncResponseIterator", "ResponseIterator"]

T = TypeVar("T")


class ResponseIterator(Generic[T]):
    """The responses to ``request``, whose sender this becomes, each of them through ``convert``.

    They come from any thread; one thread iterates. An empty end is none of them. Making it submits the request.
    """

    def __init__(self, core: CoreAccess, request: InferRequest, convert: Callable[[InferResponse], T]) -> None:
        self._core = core
        self._request = request
        self._convert = convert
        self._items: SimpleQueue[tuple[InferResponse | None, bool]] = SimpleQueue()
        self._ended = False
        request.sender = self
        core.submit(request)

    def send(self, response: InferResponse | None, final: bool) -> None:
        """See :class:`~repoagent.serving.requests.request.ResponseSender`."""
        self._items.put((response, final))

    def __iter__(self) -> "ResponseIterator[T]":
        return self

    def __next__(self) -> T:
        while not self._ended:
            response, self._ended = self._items.get()
            if response is not None:
                return self._convert(response)
        raise StopIteration

    def cancel(self) -> None:
        """Give the request up. It still gets a final response, unless it already had one."""
        self._core.cancel(self._request)


class AsyncResponseIterator(ResponseIterator[T]):
    """The same for a coroutine on the running event loop, which may also use a plain ``for``, as under Triton."""

    def __init__(self, core: CoreAccess, request: InferRequest, convert: Callable[[InferResponse], T]) -> None:
        import asyncio  # Most models never do this, and it takes a while.

        self._loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        super().__init__(core, request, convert)

    def send(self, response: InferResponse | None, final: bool) -> None:
        super().send(response, final)
        with suppress(RuntimeError):  # The loop has been closed: nobody waits there any more.
            self._loop.call_soon_threadsafe(self._arrived.set)

    def __aiter__(self) -> "AsyncResponseIterator[T]":
        return self

    async def __anext__(self) -> T:
        while not self._ended:
            try:
                response, self._ended = self._items.get_nowait()
            except Empty:
                await self._arrived.wait()
                self._arrived.clear()
                continue
            if response is not None:
                return self._convert(response)
        raise StopAsyncIteration
