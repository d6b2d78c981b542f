"""The HTTP API as an ASGI application, to be mounted in another one. It does what the front end does, only slower."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from repoagent_server.codec.binary import Buffer
from repoagent_server.http.body import DEFAULT_MAX_BODY, frame_of, json_length, too_large
from repoagent_server.http.messages import Header, Request, Response, error_response, headers_of
from repoagent_server.http.service import HttpService, Refusal, ServiceFactory
from repoagent_server.shared.connections import shown
from repoagent_server.shared.pools import Pools
from repoagent_server.shared.reserve import GrowingBody, Reserve, Unread, too_much

_Message = MutableMapping[str, Any]
_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_NO_WEBSOCKETS: Final = 1003
_FAR: Final = 1 << 16
_NEAR: Final = 1 << 14
"""Bytes of a stream that wait for the host's server: with more, the client is behind; with less, no more. A socket's
are the same."""


class AsgiApp:
    """Serves HTTP on the event loop on which it is called.

    Call :meth:`close` when it is no longer needed, or use it as a context manager: an application that it is mounted
    in does not report its own end.
    """

    def __init__(
        self, make_service: ServiceFactory, *, max_body: int = DEFAULT_MAX_BODY, request_ids: bool = True
    ) -> None:
        """``request_ids``: whether answers repeat a client's x-request-id, which some hosts do by themselves."""
        self._make_service = make_service
        self._request_ids = request_ids
        self._max_body = max_body
        self._pools = Pools("http")
        self._service: HttpService | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> "AsgiApp":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for blocking calls and end their threads."""
        self._pools.close()

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _NO_WEBSOCKETS, "reason": "there are no web sockets here"})

    async def _lifespan(self, receive: _Receive, send: _Send) -> None:
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        self.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        headers = list(scope["headers"])
        request = Request(scope["method"].encode(), _target(scope), headers, frame_of(headers))
        request.address = shown(scope.get("client"))
        service = self._service_here()
        unread = service.reserve.hold_unread()
        exchange = _Exchange(scope["method"], unread, request.frame.request_id if self._request_ids else None)
        fault = request.frame.fault
        refusal = service.verdict(request) if fault is None else _answered(error_response(*fault))
        body: memoryview | Response | None = memoryview(b"")
        if refusal is None:
            into = GrowingBody(json_length(request.frame))
            body = await _read_body(receive, self._max_body, service.reserve, into)
        if body is None:
            return
        if refusal is not None:
            refusal(exchange)
        elif isinstance(body, Response):
            exchange.respond(body)
        else:
            request.body = body
            service.handle(request, exchange)
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await exchange.relay(send, gone)
        finally:
            unread.release()
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone

    def _service_here(self) -> HttpService:
        loop = asyncio.get_running_loop()
        if self._service is None or loop is not self._loop:
            self._service, self._loop = self._make_service(loop, self._pools), loop
        return self._service


class _Exchange:
    """One request; its response arrives as the messages that ASGI wants for it."""

    def __init__(self, method: str, unread: Unread, request_id: bytes | None = None) -> None:
        self._method = method
        self._unread = unread
        self._bytes = 0
        self._own = [(b"x-request-id", request_id)] if request_id is not None else []
        self._waiting: asyncio.Queue[_Message] = asyncio.Queue()
        self.on_cancel: Callable[[], None] | None = None
        self.on_behind: Callable[[bool], None] | None = None
        self._behind = False
        """Whether the host's server has waited in ``send`` for so long that much has not been passed on."""

    def respond(self, response: Response) -> None:
        for message in _messages(response, self._method, self._own):
            self._waiting.put_nowait(message)

    def begin(self, head: Response) -> None:
        self._waiting.put_nowait(_start(head, self._own))

    def write(self, piece: bytes) -> None:
        self._waiting.put_nowait(_piece(piece, True))
        self._bytes += len(piece)
        if not self._unread.keeps_up(self._bytes) and self.on_cancel is not None:
            self.on_cancel()
        if not self._behind and self._bytes > _FAR:
            self._fall_behind(True)

    def end(self) -> None:
        self._waiting.put_nowait(_piece(b"", False))

    def _fall_behind(self, behind: bool) -> None:
        self._behind = behind
        if self.on_behind is not None:
            self.on_behind(behind)

    async def relay(self, send: _Send, gone: "asyncio.Task[None]") -> None:
        """Pass the response on; if the client leaves before its end, cancel the request."""
        more = True
        while more:
            message = await self._next(gone)
            if message is None:
                if self.on_cancel is not None:
                    self.on_cancel()
                return
            await send(message)
            self._bytes = max(0, self._bytes - len(message.get("body", b"")))
            if self._behind and self._bytes <= _NEAR:
                self._fall_behind(False)
            more = message.get("more_body", True)

    async def _next(self, gone: "asyncio.Task[None]") -> _Message | None:
        """What to send next; None if the client has left."""
        if not self._waiting.empty():
            return self._waiting.get_nowait()
        getting = asyncio.ensure_future(self._waiting.get())
        either: list[asyncio.Future[Any]] = [gone, getting]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return getting.result() if getting.done() else None
        finally:
            getting.cancel()


async def _disconnected(receive: _Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _answered(response: Response) -> Refusal:
    return lambda exchange: exchange.respond(response)


async def _read_body(
    receive: _Receive, limit: int, reserve: Reserve, body: GrowingBody
) -> memoryview | Response | None:
    """The body, or why it is refused; None if the client has left before its end."""
    hold = reserve.hold(body)
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        piece = message.get("body", b"")
        size = len(body) + len(piece)
        if size > limit:
            return error_response(too_large(size, limit), 400)
        if not hold.resize(body.takes(len(piece))):
            return error_response(too_much())
        body.extend(piece)
        more = message.get("more_body", False)
    return body.whole(hold)


def _target(scope: _Scope) -> bytes:
    """The path below the mount point, as the client encoded it, with the query."""
    path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    query: bytes = scope.get("query_string", b"")
    below = _below(path, scope["path"], scope.get("root_path", ""))
    return below + b"?" + query if query else below


def _below(raw: bytes, path: str, root: str) -> bytes:
    """``raw`` without the mount point, which may be encoded in it: the same number of segments."""
    root = root.rstrip("/")
    if not (path + "/").startswith(root + "/"):  # a proxy that took the prefix off
        return raw
    return b"".join(b"/" + segment for segment in raw.split(b"/")[root.count("/") + 1 :]) or b"/"


def _messages(response: Response, method: str, own: Sequence[Header] = ()) -> Iterator[_Message]:
    yield _start(response, [*own, (b"content-length", b"%d" % response.length)])
    for piece in () if method == "HEAD" else (response.body, *response.parts):
        yield _piece(piece, True)
    yield _piece(b"", False)


def _start(head: Response, framing: list[Header]) -> _Message:
    headers = [(name.lower(), value) for name, value in headers_of(head)]
    headers += [(b"content-type", head.content_type), *framing]
    return {"type": "http.response.start", "status": head.status, "headers": headers}


def _piece(piece: Buffer, more: bool) -> _Message:
    return {"type": "http.response.body", "body": piece, "more_body": more}
