"""Waiting for the responses to a request that a model made of another one."""

from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, TypeVar

from repoagent.serving.backends.python.model.context import CoreAccess
from repoagent.serving.backends.python.model.errors import raising_tritons
from repoagent.serving.requests.request import InferRequest, InferResponse

T = TypeVar("T")


class ResponseIterator(Generic[T]):
    """The responses to ``request``, whose sender this becomes, each of them through ``convert``.

    They come from any thread; one thread iterates. The empty end of a decoupled model's responses is one of them, as
    under Triton. Once all have come, they can be iterated over again. Making it submits the request.
    """

    def __init__(self, core: CoreAccess, request: InferRequest, convert: Callable[[InferResponse | None], T]) -> None:
        self._core = core
        self._request = request
        self._convert = convert
        self._items: SimpleQueue[tuple[InferResponse | None, bool]] = SimpleQueue()
        self._seen: list[T] = []
        self._again = 0
        """How many of those that were seen have been iterated over again."""
        self._ended = False
        request.redirect(self)
        core.submit(request)

    def send(self, response: InferResponse | None, final: bool) -> None:
        self._items.put((response, final))

    def __iter__(self) -> "ResponseIterator[T]":
        if self._ended and self._again >= len(self._seen):
            self._again = 0
        return self

    def __next__(self) -> T:
        if self._ended:
            return self._next_again()
        return self._take(*self._items.get())

    def _take(self, response: InferResponse | None, final: bool) -> T:
        self._seen.append(self._convert(response))
        if final:
            self._ended = True
            self._again = len(self._seen)
        return self._seen[-1]

    def _next_again(self) -> T:
        if self._again >= len(self._seen):
            raise StopIteration
        self._again += 1
        return self._seen[self._again - 1]

    def rest(self) -> list[T]:
        """All that come, but not an empty end."""
        found: list[T] = []
        while not self._ended:
            response, self._ended = self._items.get()
            found += [] if response is None else [self._convert(response)]
        return found

    @raising_tritons
    def cancel(self) -> None:
        """Give the request up. It still gets a final response, unless it already had one."""
        self._core.cancel(self._request)


class AsyncResponseIterator(ResponseIterator[T]):
    """The same for a coroutine on the running event loop, which may also use a plain ``for``, as under Triton."""

    def __init__(self, core: CoreAccess, request: InferRequest, convert: Callable[[InferResponse | None], T]) -> None:
        import asyncio  # Most models never do this, and it takes a while.

        self._loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        super().__init__(core, request, convert)

    def send(self, response: InferResponse | None, final: bool) -> None:
        super().send(response, final)
        with suppress(RuntimeError):  # The loop has been closed: no one waits there any more.
            self._loop.call_soon_threadsafe(self._arrived.set)

    async def first(self) -> None:
        """Wait until a response is there to be iterated over."""
        while self._items.empty():
            await self._another()

    async def arest(self) -> list[T]:
        """As :meth:`rest`."""
        found: list[T] = []
        while not self._ended:
            await self.first()
            response, self._ended = self._items.get()
            found += [] if response is None else [self._convert(response)]
        return found

    def __aiter__(self) -> "AsyncResponseIterator[T]":
        self.__iter__()
        return self

    async def __anext__(self) -> T:
        try:
            if self._ended:
                return self._next_again()
        except StopIteration:
            raise StopAsyncIteration from None
        await self.first()
        return self._take(*self._items.get())

    async def _another(self) -> None:
        await self._arrived.wait()
        self._arrived.clear()
