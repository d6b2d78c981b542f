"""gRPC over HTTP/2 of our own: the listening socket, its connections, and how they end."""

import asyncio
import contextlib
import socket
from typing import Final

from repoagent.errors import UnavailableError
from repoagent_server.grpc.http2.dispatcher import Dispatcher
from repoagent_server.grpc.http2.socket_protocol import SocketProtocol
from repoagent_server.http.listener import bound, bound_unix, is_unix, release, stop_accepting
from repoagent_server.shared.connections import FLUSH_SECONDS, Connections, backlog
from repoagent_server.shared.grpc_options import GrpcOptions
from repoagent_server.shared.pools import Pools
from repoagent_server.tls.certificates import Certificates, HeldCertificates
from repoagent_server.tls.channel import TlsChannel, TlsPort
from repoagent_server.tls.handshakes import Handshakes

_STALL_SECONDS: Final = 60.0
"""For at least this long, at most for twice as long, a client may be silent in the middle of something."""
_PART_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.005


class Http2Transport:
    """Belongs to one event loop, on whose thread it is made and called."""

    def __init__(
        self,
        options: GrpcOptions,
        dispatcher: Dispatcher,
        pools: Pools,
        tls_handshakes: int,
        tls: HeldCertificates | None,
    ) -> None:
        """``tls_handshakes``: how many may be unfinished at a time. ``tls``: see :class:`GrpcFrontend`."""
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._dispatcher = dispatcher
        self._connections = Connections(self._loop, _STALL_SECONDS)
        files = options.tls_files() if tls is None else None
        self.certificates = Certificates(files) if files is not None else tls
        """Of TLS."""
        self._tls: TlsPort | None = None
        if self.certificates is not None:
            handshakes = Handshakes(self._loop, tls_handshakes, pools.handshakes)
            self._tls = TlsPort(self.certificates, handshakes, self._connections)
        self._listener: socket.socket | None = None
        self._server: asyncio.Server | None = None

    def bind(self) -> int:
        """Take the address; the port.

        Raises:
            UnavailableError: it cannot be had.
            InvalidArgumentError: a file for TLS cannot be read.
        """
        options = self._options
        listener = self._listener = listening(options.address, options.port, options.reuse_port)
        listener.setblocking(False)
        name = listener.getsockname()
        return int(name[1]) if isinstance(name, tuple) else 0

    async def start(self) -> None:
        """Accept calls."""
        options = self._options
        assert self._listener is not None
        try:
            own = self._listener.dup()
            self._server = await self._loop.create_server(self._protocol, sock=own, backlog=backlog())
        except OSError as error:
            raise UnavailableError(
                f"gRPC cannot listen on {options.address}:{options.port}: the address is in use or not ours"
            ) from error
        if self.certificates is not None:
            self.certificates.watch()

    async def part(self) -> None:
        """Ask clients to go elsewhere with new calls; those that come are served.

        Returns when every client has heard, or has had its time for that.
        """
        if self._options.reuse_port:
            await self._stop_listening()  # what begins now is left to the server that follows
        deadline = self._loop.time() + _PART_SECONDS
        while not self._parted() and self._loop.time() < deadline:
            await asyncio.sleep(_POLL_SECONDS)

    async def leave(self, timeout: float) -> None:
        """Leave the port to another process that has the same socket: accept nothing more, ask clients to go elsewhere
        with new calls, and return once all have gone, at the latest after ``timeout`` seconds."""
        await self._stop_listening(others=False)
        for protocol in self._protocols():
            protocol.part()
        await self._connections.gone(timeout)

    async def stop(self, grace: float) -> None:
        await self._stop_listening()
        if self.certificates is not None:
            self.certificates.close()
        for protocol in self._protocols():
            protocol.part()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._connections.empty(), grace)
        tasks = list(self._dispatcher.tasks)
        await self._connections.close_all(0.0)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=FLUSH_SECONDS)
        await self._connections.flushed()

    async def _stop_listening(self, *, others: bool = True) -> None:
        listener, self._listener = self._listener, None
        if listener is None:
            return
        shared = others and self._options.reuse_port
        await stop_accepting(listener, self._server, self._protocol, shared=shared)
        release(self._options.address, self._options.port)

    def _parted(self) -> bool:
        """Ask every client to go, and those whose handshake has ended since; whether all have heard."""
        for protocol in self._protocols():
            protocol.part()
        return all(isinstance(one, SocketProtocol) and one.connection.control.parted for one in self._connections)

    def _protocols(self) -> list[SocketProtocol]:
        return [one for one in self._connections if isinstance(one, SocketProtocol)]

    def _protocol(self) -> asyncio.Protocol:
        return self._plain() if self._tls is None else TlsChannel(self._tls, self._plain)

    def _plain(self) -> SocketProtocol:
        return SocketProtocol(self._dispatcher, self._connections, self._options)


def listening(address: str, port: int, reuse_port: bool) -> socket.socket:
    """A socket that has the address and does not listen yet: ``host``, ``::1``, ``[::1]``, ``unix:PATH``.

    Raises:
        UnavailableError: the address cannot be had.
    """
    try:
        if is_unix(address):
            return bound_unix(address, port)
        return bound(address.removeprefix("[").removesuffix("]"), port, reuse_port)
    except UnavailableError as error:
        where = address if is_unix(address) else f"{address}:{port}"
        raise UnavailableError(f"gRPC cannot listen on {where}: the address is in use or not ours") from error
