"""A front end: a socket, a thread with an event loop, and the connections that come in there."""

import asyncio
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import ClassVar, Final

import uvloop

from repoagent.errors import UnavailableError
from repoagent.limits import DEFAULT_LIMITS
from repoagent.serving.instances.loop_reader import LoopReader
from repoagent_server.http.connection import HttpConnection
from repoagent_server.http.listener import bound, release, stop_accepting
from repoagent_server.http.origins import Origins
from repoagent_server.http.reader import Limits
from repoagent_server.http.service import HttpService, ServiceFactory
from repoagent_server.shared.connections import Connections, InFlight, backlog, come_round
from repoagent_server.shared.pools import Pools
from repoagent_server.tls.certificates import HeldCertificates
from repoagent_server.tls.channel import HTTP_ANSWER, TlsChannel, TlsPort
from repoagent_server.tls.handshakes import Handshakes

_FIRST_REQUEST_SECONDS: Final = 1.0

Protocols = Callable[[], asyncio.Protocol]
"""Makes what speaks the protocol on a new connection."""


class Running:
    """What a front end has on its event loop while it serves."""

    def __init__(self, place: tuple[str, int], listener: socket.socket, pools: Pools, stall_seconds: float) -> None:
        """``listener``: a copy of the socket, from which connections are taken over at the end."""
        listener.setblocking(False)
        self.loop: Final = asyncio.get_running_loop()
        self.done: Final = asyncio.Event()
        self.pools: Final = pools
        self.connections: Final = Connections(self.loop, stall_seconds)
        self.in_flight: Final = self.connections.in_flight
        self._place = place
        self._listener: socket.socket | None = listener
        self._accepting: asyncio.Server | None = None
        self._protocols: Protocols

    async def listen(self, listener: socket.socket, protocols: Protocols) -> None:
        """Accept connections."""
        self._protocols = protocols
        self._accepting = await self.loop.create_server(protocols, sock=listener, backlog=backlog())

    async def stop_listening(self, *, shared: bool) -> None:
        """Accept nothing more. ``shared``: what begins now is left to other servers on the port. Twice is once."""
        listener, self._listener = self._listener, None
        if listener is not None:
            await stop_accepting(listener, self._accepting, self._protocols, shared=shared)
            release(*self._place)


class Frontend(ABC):
    """Listens on one port. ``bind``, ``start``, then ``refuse``, ``drain``, ``stop``; from one thread."""

    name: ClassVar[str]
    plain_answer: ClassVar[bytes] = b""
    """What a client gets that begins with anything but a handshake, where TLS is served."""

    def __init__(
        self,
        place: tuple[str, int],
        certificates: HeldCertificates | None,
        *,
        shared: bool,
        stall_seconds: float,
        tls_handshakes: int,
    ) -> None:
        """``place``: address and port. ``shared``: other servers may listen there."""
        self._place = place
        self._certificates = certificates
        self._shared = shared
        self._stall_seconds = stall_seconds
        self._tls_handshakes = tls_handshakes
        self._socket: socket.socket | None = None
        self._address: tuple[str, int] | None = None
        self._running: Running | None = None
        self._thread: threading.Thread | None = None

    @abstractmethod
    def _listening(self) -> tuple[socket.socket, tuple[str, int]]:
        """A socket that has the address, and that address. Raises as :meth:`bind`."""

    @abstractmethod
    async def _open(self, running: Running) -> Protocols:
        """On the loop: make the service, and what speaks its protocol."""

    @abstractmethod
    async def _refuse(self, running: Running) -> None:
        """On the loop: let nothing more in that reaches a model; what was let in has reached the core then."""

    @abstractmethod
    def _send_away(self, running: Running) -> None:
        """On the loop: have the clients go elsewhere."""

    @abstractmethod
    async def _close(self, running: Running) -> None:
        """On the loop: end every connection."""

    def bind(self) -> tuple[str, int]:
        """Take the address without serving yet, so that a clash shows before models are loaded; address and port.

        Raises:
            UnavailableError: the address cannot be had.
            InvalidArgumentError: a file for TLS cannot be read.
        """
        if self._address is None:
            self._socket, self._address = self._listening()
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
        started: Future[Running] = Future()
        self._thread = threading.Thread(target=self._run, args=(self._socket, started), name=self.name, daemon=True)
        self._thread.start()
        self._running = started.result()

    def refuse(self) -> None:
        """Accept no more inference, load and unload requests.

        When it returns, whatever was not refused has reached the core: models may be unloaded then without a request
        that was let in finding none.
        """
        if (running := self._running) is not None:
            asyncio.run_coroutine_threadsafe(self._refuse(running), running.loop).result()

    def turn(self) -> None:
        """Return once its loop has come round: at once, unless that hangs, or is not there."""
        if (running := self._running) is not None and self._thread is not None:
            come_round(running.loop, self._thread)

    def on_loop(self, call: Callable[[InFlight], object]) -> None:
        """Have its event loop call ``call`` with what counts its requests, if it serves."""
        if (running := self._running) is not None:
            running.loop.call_soon_threadsafe(call, running.in_flight)

    def part(self, timeout: float) -> None:
        """Leave the port to another process that has the same socket: accept nothing more, have clients go elsewhere,
        and return once all connections have ended, at the latest after ``timeout`` seconds."""

        async def leave(running: Running) -> None:
            await running.stop_listening(shared=False)  # What would be left to others is on the socket that stays.
            self._send_away(running)
            await running.connections.gone(timeout)

        if (running := self._running) is not None:
            asyncio.run_coroutine_threadsafe(leave(running), running.loop).result()

    def drain(self, timeout: float) -> bool:
        """Refuse what is new and wait until every request has been answered; False if ``timeout`` seconds are up."""
        running = self._running
        if running is None:
            return True
        self.refuse()
        return asyncio.run_coroutine_threadsafe(running.in_flight.idle(timeout), running.loop).result()

    def stop(self) -> None:
        """Close every connection and end the thread. Twice is once."""
        running, self._running = self._running, None
        if running is not None and self._thread is not None:
            running.loop.call_soon_threadsafe(running.done.set)
            self._thread.join()
        if self._certificates is not None:
            self._certificates.close()
        if self._socket is not None:
            self._socket.close()
            if running is None:
                release(*self._place)
            self._socket = self._address = None

    def _run(self, listener: socket.socket, started: "Future[Running]") -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve(listener, started))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    async def _serve(self, listener: socket.socket, started: "Future[Running]") -> None:
        with Pools(self.name) as pools, listener.dup() as own, LoopReader(asyncio.get_running_loop()):
            running = Running(self._place, own, pools, self._stall_seconds)
            plain = await self._open(running)
            try:
                await running.listen(listener, self._over_tls(plain, running))
            except OSError as error:
                raise UnavailableError(
                    f"{self.name} cannot listen on {self._place[0]}:{self._place[1]}: {error.strerror}"
                ) from error
            started.set_result(running)
            await running.done.wait()
            await running.stop_listening(shared=self._shared)
            await self._close(running)
            await running.connections.flushed()

    def _over_tls(self, plain: Protocols, running: Running) -> Protocols:
        if self._certificates is None:
            return plain
        handshakes = Handshakes(running.loop, self._tls_handshakes, running.pools.handshakes)
        port = TlsPort(self._certificates, handshakes, running.connections, self.plain_answer)
        return lambda: TlsChannel(port, plain)


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


class HttpFrontend(Frontend):
    """Serves HTTP. Once it refuses, it accepts no more connections."""

    name = "http"
    plain_answer = HTTP_ANSWER

    def __init__(self, endpoint: Endpoint, make_service: ServiceFactory) -> None:
        super().__init__(
            (endpoint.address, endpoint.port),
            endpoint.tls,
            shared=endpoint.reuse_port,
            stall_seconds=endpoint.limits.stall_seconds,
            tls_handshakes=endpoint.tls_handshakes,
        )
        self._endpoint = endpoint
        self._make_service = make_service
        self._service: HttpService

    def _listening(self) -> tuple[socket.socket, tuple[str, int]]:
        listener = bound(*self._place, self._shared)
        address, port = listener.getsockname()[:2]
        return listener, (str(address), int(port))

    async def _open(self, running: Running) -> Protocols:
        service = self._service = self._make_service(running.loop, running.pools)
        service.origins = Origins(self._endpoint.address, self._endpoint.allowed_hosts)
        return lambda: HttpConnection(service, running.connections, self._endpoint.limits)

    async def _refuse(self, running: Running) -> None:
        self._service.stopping = True
        await running.stop_listening(shared=self._shared)
        # What is being read on its thread was let in: it reaches the core before the next turn of the loop.
        await running.loop.run_in_executor(running.pools.long, _nothing)

    def _send_away(self, running: Running) -> None:
        self._service.parting = True

    async def _close(self, running: Running) -> None:
        await running.connections.close_all(_FIRST_REQUEST_SECONDS)


def _nothing() -> None:
    pass
