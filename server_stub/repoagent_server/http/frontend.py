"""A front end: a socket, a thread with an event loop, and the connections that come in there."""

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

import uvloop

from repoagent.limits import DEFAULT_LIMITS
from repoagent.serving.instances.loop_reader import LoopReader
from repoagent_server.http.connection import HttpConnection
from repoagent_server.http.listener import bound, stop_accepting
from repoagent_server.http.origins import Origins
from repoagent_server.http.reader import Limits
from repoagent_server.http.service import HttpService, ServiceFactory
from repoagent_server.shared.connections import Connections, InFlight, backlog, come_round
from repoagent_server.shared.pools import Pools
from repoagent_server.tls.certificates import HeldCertificates
from repoagent_server.tls.channel import HTTP_ANSWER, TlsChannel, TlsPort
from repoagent_server.tls.handshakes import Handshakes

_FIRST_REQUEST_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a front end listens. Port 0 takes a free one."""

    address: str = "127.0.0.1"
    port: int = 8000
    reuse_port: bool = False
    limits: Limits = field(default_factory=Limits)
    allowed_hosts: tuple[str, ...] = ()
    """Further names of the server: see :class:`~repoagent_server.http.origins.Origins`."""
    tls: HeldCertificates | None = None
    """What TLS is served with, which ends with the front end; None for plain HTTP."""
    tls_handshakes: int = DEFAULT_LIMITS.tls_handshakes
    """How many handshakes may be unfinished at a time."""


class HttpFrontend:
    """Listens on one port. ``bind``, ``start``, then ``refuse``, ``drain``, ``stop``; from one thread."""

    def __init__(self, endpoint: Endpoint, make_service: ServiceFactory) -> None:
        self._endpoint = endpoint
        self._make_service = make_service
        self._socket: socket.socket | None = None
        self._address: tuple[str, int] | None = None
        self._certificates = endpoint.tls
        self._running: _Running | None = None
        self._thread: threading.Thread | None = None

    def bind(self) -> tuple[str, int]:
        """Take the address without serving yet, so that a clash shows before models are loaded.

        Raises:
            UnavailableError: the address cannot be had.
        """
        if self._address is None:
            self._socket = bound(self._endpoint.address, self._endpoint.port, self._endpoint.reuse_port)
            address, port = self._socket.getsockname()[:2]
            self._address = str(address), int(port)
        return self._address

    @property
    def certificate_end(self) -> float | None:
        """When its TLS certificate ends, in seconds since the epoch; None without TLS."""
        return self._certificates.end if self._certificates is not None else None

    def start(self) -> None:
        """Serve; returns when connections are accepted. What the service raises while it is made, this raises."""
        self.bind()
        assert self._socket is not None
        if self._certificates is not None:
            self._certificates.watch()
        started: Future[_Running] = Future()
        self._thread = threading.Thread(target=self._run, args=(self._socket, started), name="http", daemon=True)
        self._thread.start()
        self._running = started.result()

    def refuse(self) -> None:
        """Accept no more connections, and on the open ones no more inference, load and unload requests.

        When it returns, whatever was not refused has reached the core: models may be unloaded then without a request
        that was let in finding none.
        """
        if self._running is not None:
            asyncio.run_coroutine_threadsafe(self._running.refuse(), self._running.loop).result()

    def turn(self) -> None:
        """Return once its loop has come round: at once, unless that hangs, or is not there."""
        if (running := self._running) is not None and self._thread is not None:
            come_round(running.loop, self._thread)

    def on_loop(self, call: Callable[[InFlight], object]) -> None:
        """Have its event loop call ``call`` with what counts its requests, if it serves."""
        if (running := self._running) is not None:
            running.loop.call_soon_threadsafe(call, running.in_flight)

    def part(self, timeout: float) -> None:
        """Leave the port to another process that has the same socket: accept nothing more, have each connection end
        with its next answer, and return once all have ended, at the latest after ``timeout`` seconds."""
        if self._running is not None:
            asyncio.run_coroutine_threadsafe(self._running.part(timeout), self._running.loop).result()

    def drain(self, timeout: float) -> bool:
        """Refuse what is new and wait until every request has been answered; False if ``timeout`` seconds are up."""
        running = self._running
        if running is None:
            return True
        self.refuse()
        return asyncio.run_coroutine_threadsafe(running.in_flight.idle(timeout), running.loop).result()

    def stop(self) -> None:
        """Close every connection and end the thread."""
        if self._running is not None and self._thread is not None:
            self._running.loop.call_soon_threadsafe(self._running.done.set)
            self._thread.join()
            self._running = None
        if self._certificates is not None:
            self._certificates.close()
        if self._socket is not None:
            self._socket.close()
            self._socket = self._address = None

    def _run(self, listener: socket.socket, started: "Future[_Running]") -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve(listener, started))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    async def _serve(self, listener: socket.socket, started: "Future[_Running]") -> None:
        loop = asyncio.get_running_loop()
        with Pools("http") as pools, listener.dup() as own, LoopReader(loop):
            service = self._make_service(loop, pools)
            service.origins = Origins(self._endpoint.address, self._endpoint.allowed_hosts)
            connections = Connections(loop, self._endpoint.limits.stall_seconds)
            tls = self._tls_port(loop, connections, pools)
            await _Running(loop, self._endpoint, service, connections, pools, tls, own).serve(listener, started)

    def _tls_port(self, loop: asyncio.AbstractEventLoop, connections: Connections, pools: Pools) -> TlsPort | None:
        if self._certificates is None:
            return None
        handshakes = Handshakes(loop, self._endpoint.tls_handshakes, pools.handshakes)
        return TlsPort(self._certificates, handshakes, connections, HTTP_ANSWER)


class _Running:
    """A front end that serves: accepts connections until ``done`` is set, then ends them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        endpoint: Endpoint,
        service: HttpService,
        connections: Connections,
        pools: Pools,
        tls: TlsPort | None,
        listener: socket.socket,
    ) -> None:
        """``listener``: a copy of the socket, from which connections are taken over at the end."""
        listener.setblocking(False)
        self.loop = loop
        self.done = asyncio.Event()
        self.in_flight = connections.in_flight
        self._limits = endpoint.limits
        self._shared = endpoint.reuse_port
        """Whether other servers may listen on the same port."""
        self._service = service
        self._connections = connections
        self._pools = pools
        self._tls = tls
        self._listener: socket.socket | None = listener
        self._accepting: asyncio.Server | None = None

    async def serve(self, listener: socket.socket, started: "Future[_Running]") -> None:
        self._accepting = await self.loop.create_server(self._protocol, sock=listener, backlog=backlog())
        started.set_result(self)
        await self.done.wait()
        await self._stop_listening()
        await self._connections.close_all(_FIRST_REQUEST_SECONDS)
        await self._connections.flushed()

    async def refuse(self) -> None:
        self._service.stopping = True
        await self._stop_listening()
        # What is being read on its thread was let in: it reaches the core before the next turn of the loop.
        await self.loop.run_in_executor(self._pools.long, _nothing)

    async def part(self, timeout: float) -> None:
        self._shared = False  # What would be left to other servers is on the socket that stays.
        await self._stop_listening()
        self._service.parting = True
        await self._connections.gone(timeout)

    async def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            await stop_accepting(listener, self._accepting, self._protocol, shared=self._shared)

    def _protocol(self) -> asyncio.Protocol:
        return self._plain() if self._tls is None else TlsChannel(self._tls, self._plain)

    def _plain(self) -> HttpConnection:
        return HttpConnection(self._service, self._connections, self._limits)


def _nothing() -> None:
    pass
