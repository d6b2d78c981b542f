"""HTTP requests in a replica: what an ingress passed on goes through the routes of the server, as if it came here."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.body import frame_of
from repoagent_server.http.messages import Request, Response, error_response, headers_of
from repoagent_server.http.openai_answers import openai_error
from repoagent_server.http.service import HttpService
from repoagent_server.shared.pools import Pools

from repoagent.errors import RepoAgentError
from repoagent.server import Server
from repoagent_ray.settings import Settings
from repoagent_ray.wire import HttpCall, HttpHead, is_openai, pack, unpack

_STREAM_BACKLOG: Final = 4096
"""Pieces of a stream that may wait for a slow client before its request is cancelled."""


class ReplicaHttp:
    """Answers requests on the event loop on which it is called. Who may ask was decided in the ingress."""

    def __init__(self, server: Server, settings: Settings, pools: Pools) -> None:
        self._make = api_service(
            Served(server.core, limits=settings.limits),
            max_input_size=settings.max_body,
            forward_headers=settings.forward_headers,
            openai=settings.allow_openai,
        )
        self._pools = pools
        self._service: HttpService | None = None

    async def once(self, call: HttpCall) -> HttpHead:
        """The answer to a request that has one piece."""
        exchange = self._begin(call)
        try:
            head = await exchange.next()
        except asyncio.CancelledError:
            exchange.cancel()
            raise
        assert isinstance(head, HttpHead)
        return head

    async def stream(self, call: HttpCall) -> AsyncIterator[HttpHead | bytes]:
        """The answer piece by piece, its head first."""
        exchange = self._begin(call)
        try:
            while (piece := await exchange.next()) is not None:
                yield piece
        finally:
            exchange.cancel()  # without effect on a request that has been answered

    def _begin(self, call: HttpCall) -> "_Exchange":
        if self._service is None:
            self._service = self._make(asyncio.get_running_loop(), self._pools)
        exchange = _Exchange()
        request = Request(call.method, call.target, call.headers, frame_of(call.headers), unpack(call.body))
        self._service.handle(request, exchange)
        return exchange


def refused(error: RepoAgentError, call: HttpCall) -> HttpHead:
    """The answer to a call whose model cannot be loaded."""
    return _head(openai_error(error) if is_openai(call.target) else error_response(error))


class _Exchange:
    """One request; see :class:`~repoagent_server.http.messages.Exchange`."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[HttpHead | bytes | None] = asyncio.Queue()
        self.on_cancel: Callable[[], None] | None = None
        self.on_behind: Callable[[bool], None] | None = None

    def respond(self, response: Response) -> None:
        self._pieces.put_nowait(_head(response))
        self._pieces.put_nowait(None)

    def begin(self, head: Response) -> None:
        self._pieces.put_nowait(_head(head))

    def write(self, piece: bytes) -> None:
        self._pieces.put_nowait(piece)
        if self._pieces.qsize() > _STREAM_BACKLOG:
            self.cancel()

    def end(self) -> None:
        self._pieces.put_nowait(None)

    async def next(self) -> HttpHead | bytes | None:
        """The next piece, None at the end."""
        return await self._pieces.get()

    def cancel(self) -> None:
        """The client has gone."""
        if self.on_cancel is not None:
            self.on_cancel()


def _head(response: Response) -> HttpHead:
    pieces = (piece for piece in (response.body, *response.parts) if len(piece))
    return HttpHead(response.status, response.content_type, list(headers_of(response)), tuple(map(pack, pieces)))
