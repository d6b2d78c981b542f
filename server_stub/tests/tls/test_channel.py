"""The transport over TLS: every byte, in order, both ways, however the sides stop and go on."""

import asyncio
import contextlib
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from repoagent_server.shared.pools import Pools
from repoagent_server.tls.certificates import Certificates, TlsFiles
from repoagent_server.tls.channel import TlsChannel, TlsPort
from repoagent_server.tls.handshakes import Handshakes

from tests.certificates import Authority, Pair

pytestmark = pytest.mark.slow

_TOTAL = 12_000_000


class _Register:
    """The connections of a front end, as a set."""

    def __init__(self) -> None:
        self.open: list[Any] = []

    def opened(self, connection: Any, transport: asyncio.BaseTransport) -> None:
        del transport
        self.open.append(connection)

    def lost(self, connection: Any) -> None:
        self.open.remove(connection)


class _Echo(asyncio.Protocol):
    """Sends back what it gets; reads no more while it may not write."""

    def __init__(self) -> None:
        self.transport: TlsChannel
        self.most = 0
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TlsChannel)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)
        self.most = max(self.most, self.transport.get_write_buffer_size())

    def pause_writing(self) -> None:
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


class _InTurns(_Echo):
    """The same; what comes is read by a protocol with its own memory, and by this one, in turns."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_reading():
            self.transport.pause_reading()
            self.transport.set_protocol(_Memory(self))
            self.transport.resume_reading()


class _Memory(asyncio.BufferedProtocol):
    """Takes 50,001 bytes, then gives the connection back."""

    def __init__(self, owner: _Echo) -> None:
        self._owner = owner
        self._memory = bytearray(50_001)
        self._filled = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._memory)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled == len(self._memory):
            self._owner.transport.set_protocol(self._owner)
            self._owner.transport.write(bytes(self._memory))

    def pause_writing(self) -> None:
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        self._owner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.connection_lost(exc)


@asynccontextmanager
async def _serving(pair: Pair, make: Callable[[], asyncio.Protocol]) -> AsyncIterator[tuple[int, _Register]]:
    loop = asyncio.get_running_loop()
    register = _Register()
    certificates = Certificates(TlsFiles("HTTP", pair.certificate, pair.key))
    with Pools("tls") as pools:
        port = TlsPort(certificates, Handshakes(loop, 10, pools.handshakes), register)
        server = await loop.create_server(lambda: TlsChannel(port, make), "127.0.0.1", 0)
        yield server.sockets[0].getsockname()[1], register
        server.close()


def _run(test: Any) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test)


@pytest.mark.parametrize("make", [_Echo, _InTurns])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_every_byte_arrives_in_order_and_little_is_held(
    authority: Authority, server_pair: Pair, make: type[_Echo], version: ssl.TLSVersion
) -> None:
    made: list[_Echo] = []

    def protocol() -> _Echo:
        made.append(make())
        return made[-1]

    async def run() -> None:
        context = ssl.create_default_context(cafile=authority.root)
        context.minimum_version = context.maximum_version = version
        content = random.Random(version).randbytes(_TOTAL // 50_001 * 50_001)
        async with _serving(server_pair, protocol) as (port, _):
            reader, writer = await asyncio.open_connection("localhost", port, ssl=context)

            async def send() -> None:
                sizes = random.Random(3)
                start = 0
                while start < len(content):
                    size = sizes.choice([1, 17, 4000, 16384, 300_000])
                    writer.write(content[start : start + size])
                    await writer.drain()
                    start += size

            sending = asyncio.create_task(send())
            received = b""
            if make is _Echo:
                received = await reader.readexactly(len(content))
            else:  # what does not fill the memory stays there
                with contextlib.suppress(asyncio.IncompleteReadError):
                    while len(received) < len(content) - 50_001:
                        received += await reader.readexactly(min(50_001, len(content) - len(received)))
            await sending
            assert received == content[: len(received)]
            assert len(received) >= len(content) - 50_001
            assert made[0].most < 2_000_000
            writer.close()

    _run(run())


def test_close_sends_what_was_written_and_then_the_end(authority: Authority, server_pair: Pair) -> None:
    content = random.Random(1).randbytes(5_000_000)

    class Giver(_Echo):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.transport.writelines([content[:10], content[10:]])
            self.transport.close()
            self.transport.write(b"too late")
            assert self.transport.is_closing()

    def read(port: int) -> bytes:
        context = ssl.create_default_context(cafile=authority.root)
        with (
            socket.create_connection(("127.0.0.1", port), timeout=60) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as client,
            client.makefile("rb") as stream,
        ):
            return stream.read()

    async def run() -> None:
        giver = Giver()
        async with _serving(server_pair, lambda: giver) as (port, register):
            assert await asyncio.to_thread(read, port) == content
            await giver.ended.wait()
            assert register.open == []

    _run(run())


def test_a_client_that_goes_in_the_middle_ends_the_connection(authority: Authority, server_pair: Pair) -> None:
    async def run() -> None:
        made: asyncio.Queue[_Echo] = asyncio.Queue()

        def protocol() -> _Echo:
            made.put_nowait(echo := _Echo())
            return echo

        context = ssl.create_default_context(cafile=authority.root)
        async with _serving(server_pair, protocol) as (port, _):
            for _ in range(3):
                _, writer = await asyncio.open_connection("localhost", port, ssl=context)
                echo = await made.get()
                writer.write(bytes(100_000))
                writer.transport.abort()
                await echo.ended.wait()

    _run(run())
