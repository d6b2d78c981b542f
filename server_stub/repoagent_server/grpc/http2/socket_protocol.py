"""A connection on the event loop: its socket, its clock, and when it ends."""

import asyncio
import random
import ssl
from collections.abc import Callable
from typing import Final, cast

from repoagent_server.access import PeerIdentity
from repoagent_server.grpc.http2.connection import Connection
from repoagent_server.grpc.http2.control import Rules
from repoagent_server.grpc.http2.dispatcher import Dispatcher
from repoagent_server.grpc.http2.running_call import RunningCall
from repoagent_server.shared.connections import Connections, address_of, write_pieces
from repoagent_server.shared.grpc_options import GrpcOptions
from repoagent_server.shared.reserve import Uptake

_HIGH_WATER: Final = 1 << 20
"""Bytes that the transport may hold before answers wait in their queues."""
_PART_SECONDS: Final = 1.0
"""For how long the client may still open streams after it has been asked not to."""
_JITTER: Final = 0.1
_UNAVAILABLE: Final = 14


class SocketProtocol(asyncio.Protocol):
    """One connection. Belongs to ``connections`` of the same loop."""

    def __init__(self, dispatcher: Dispatcher, connections: Connections, options: GrpcOptions) -> None:
        self._loop = dispatcher.loop
        self._connections = connections
        self._options = options
        self._keepalive = options.keepalive_time_ms / 1000
        self._transport: asyncio.Transport | None = None
        self._heard = 0.0
        self._pinged = 0.0
        self._pings = 0
        self._pings_at = 0
        self._reads_on = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._seen: tuple[float, int, int] | None = None
        self._reserve = dispatcher.reserve
        self._written = 0
        self._uptake = Uptake(self._reserve)
        self._unread = self._reserve.hold_unread()
        """What the transport holds, for which answers in queues hold nothing any more."""
        self._uptakes: dict[int, Uptake] = {}
        """Those of the streams whose answers wait."""
        rules = Rules(
            options.http2_min_recv_ping_interval_without_data_ms / 1000,
            options.http2_max_ping_strikes,
            options.keepalive_permit_without_calls,
        )
        self.connection: Final = Connection(dispatcher, rules, dispatcher.reserve, self._loop.time)
        self.connection.sender.wake = self._wake

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        self._connections.opened(self, transport)
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self._transport.close()
            return
        self.connection.peer = PeerIdentity.of_connection(tls)
        self.connection.address = address_of(transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)
        self._heard = self._loop.time()
        self._after("keepalive", self._keepalive, self._keep_alive)
        if age := self._options.max_connection_age_ms / 1000:
            self._after("age", age * random.uniform(1 - _JITTER, 1 + _JITTER), self._grow_old)  # noqa: S311
        self.connection.control.open()
        self.flush()

    def data_received(self, data: bytes) -> None:
        connection = self.connection
        self._heard = self._loop.time()
        if self._pinged:
            self._pinged = 0.0  # it is there
            self._after("keepalive", self._keepalive, self._keep_alive)
        connection.sender.dirty = True  # it is written at the end of this
        connection.receive(data)
        self.flush()
        if connection.more:
            self._read_on_later()

    def _read_on_later(self) -> None:
        """Go on with what has come once others have had their turn."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            if not self._reads_on:  # A TLS transport may pass on what it had before it paused.
                self._reads_on = True
                self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        self._reads_on = False
        connection, transport = self.connection, self._transport
        if transport is None or transport.is_closing() or not connection.sender.writable:
            return  # no one reads what an ended connection leaves behind
        connection.sender.dirty = True
        connection.receive(b"")
        self.flush()
        if connection.more:
            self._read_on_later()
        elif connection.sender.writable and not transport.is_closing():
            transport.resume_reading()

    def eof_received(self) -> bool | None:
        """A client that has stopped sending is gone; the transport closes."""
        return None

    def pause_writing(self) -> None:
        self.connection.sender.writable = False

    def resume_writing(self) -> None:
        self._count_unread()
        self.connection.sender.writable = True
        self.connection.sender.go_on()
        self.flush()
        transport = self._transport
        if self.connection.more:
            self._read_on_later()
        elif transport is not None and not transport.is_closing() and not transport.is_reading():
            transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._connections.lost(self)
        self._unread.release()
        self.connection.control.lost()
        # These lead back here.
        self.connection.sender.wake = self.connection.control.on_parted = _nothing

    # What the front end calls.

    def flush(self) -> None:
        """Write what there is to write, as much as the socket takes."""
        connection, transport, sender = self.connection, self._transport, self.connection.sender
        sender.dirty = True
        while sender.out and transport is not None:
            pieces = sender.taken()
            self._written += write_pieces(transport, pieces)
            if not sender.writable or not sender.stuck:
                break
            sender.go_on()
        sender.dirty = False
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() or self._unread.size:
            self._count_unread()
        if connection.control.parted and (connection.control.closed or not connection.streams):
            transport.close()
        elif not sender.writable and transport.is_reading():
            transport.pause_reading()  # a client that does not read must not make us answer more

    def _count_unread(self) -> None:
        size = self._transport.get_write_buffer_size() if self._transport is not None else 0
        self._unread.resize(size)

    def part(self) -> None:
        """Ask the client to go elsewhere; the connection ends after the last answer."""
        if not self.connection.control.parting:
            self.connection.control.part()
            self._after("part", _PART_SECONDS, self.connection.control.part_now)

    def close(self) -> None:
        """End the connection after the answers given so far. Calls that still run end with a status: as they may have
        been executed, the client must not believe that it can try them elsewhere without harm."""
        connection = self.connection
        connection.control.part_now()
        for stream in list(connection.streams.values()):
            if not stream.tail:
                call, stream.call = stream.call, None
                connection.sender.finish(stream, _UNAVAILABLE, "the server has stopped")
                if call is not None:
                    call.lost()
        self.flush()
        if self._transport is not None and not connection.streams:
            self._transport.close()

    def abort(self) -> None:
        """End it without waiting for a client that does not read."""
        if self._transport is not None:
            self._transport.abort()

    def untried(self, since: float) -> bool:
        """See :class:`Connections`. A client tries again by itself what GOAWAY did not let in."""
        return False

    def close_if_stalled(self) -> None:
        """End it if, since the last call, nothing more has come of what the client began, or it has taken nothing (or
        little, and others need the room). One that has not had a call is asked to come again with it."""
        connection, transport = self.connection, self._transport
        if transport is None:
            return
        self._count_unread()
        size = transport.get_write_buffer_size()
        seen, lags = (self._heard, connection.sender.answers, size), self._uptake.lags(self._written - size, size)
        before, self._seen = self._seen, seen
        if before is None:
            return
        if connection.control.unused:
            self.part()
        calls = [stream.call for stream in connection.streams.values() if isinstance(stream.call, RunningCall)]
        begun = connection.unfinished or any(call.unfinished for call in calls)
        unread = size or any(stream.waiting for stream in connection.streams.values())
        if lags or (begun and seen[0] == before[0]) or (unread and seen[1:] == before[1:]):
            transport.abort()
            return
        self._drop_dripped()
        for call in calls:
            call.end_if_lagging()

    def _drop_dripped(self) -> None:
        """End the calls whose answers the client lets flow too slowly, while others need the room."""
        streams = [stream for stream in self.connection.streams.values() if stream.waiting]
        self._uptakes = {stream.id: self._uptakes.get(stream.id) or Uptake(self._reserve) for stream in streams}
        for stream in streams:
            if self._uptakes[stream.id].lags(stream.sent, stream.waiting):
                self.connection.sender.drop(stream)

    def progress(self) -> float | None:
        ends = self._transport is None or self._transport.is_closing()
        return None if ends or self.connection.streams else self._heard

    # Timers.

    def _wake(self) -> None:
        if len(self._connections) == 1 and not self.connection.streams:
            self.flush()  # nothing else can be answered in this turn of the loop, for whose sake it would wait
        else:
            self._connections.write_soon(self)

    def _after(self, name: str, seconds: float, act: Callable[[], None]) -> None:
        before = self._timers.get(name)
        if before is not None:
            before.cancel()
        self._timers[name] = self._loop.call_later(seconds, act)

    def _grow_old(self) -> None:
        self.part()
        if grace := self._options.max_connection_age_grace_ms / 1000:
            self._after("grace", grace, self.abort)

    def _keep_alive(self) -> None:
        """Ping a client that has been silent; end the connection if that is not answered."""
        now = self._loop.time()
        if self._pinged:
            self.abort()
            return
        rest = self._heard + self._keepalive - now
        if rest > 0:
            self._after("keepalive", rest, self._keep_alive)
        elif self._may_ping():
            self._pinged = now
            self.connection.control.ping()
            self._after("keepalive", self._options.keepalive_timeout_ms / 1000, self._keep_alive)
        else:
            self._after("keepalive", self._keepalive, self._keep_alive)

    def _may_ping(self) -> bool:
        connection, most = self.connection, self._options.http2_max_pings_without_data
        if not connection.streams and not self._options.keepalive_permit_without_calls:
            return False
        if connection.sender.answers != self._pings_at:
            self._pings_at, self._pings = connection.sender.answers, 0
        self._pings += 1
        return not most or self._pings <= most


def _nothing() -> None:
    pass
