"""A connection with TLS: a protocol to the socket's transport, a transport to the protocol of the front end.

uvloop has one, too. It does not count what waits in the socket's own buffer, so that a client that does not read would
go unnoticed. It cuts a long answer off 30 seconds after its last byte was given. And it knows no limit of handshakes.
"""

import asyncio
import contextlib
import enum
import logging
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from repoagent_server.tls.certificates import HeldCertificates
from repoagent_server.tls.handshakes import Handshakes, Outcome, read_all, read_into

logger = logging.getLogger(__name__)

HTTP_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: 69\r\nConnection: close\r\n\r\n"
    b'{"error":"this port expects HTTPS; the request was sent without TLS"}'
)
"""For a client of HTTP that does not know of TLS."""

_HANDSHAKE_RECORD: Final = 0x16
_SLICE: Final = 1 << 17
"""Bytes that are encrypted at a time; what the socket does not take is not encrypted yet."""
_HIGH: Final = 1 << 16
_CONTROL: Final = 1 << 20
"""Bytes that may wait for a client that makes the server write (new keys, alerts) and does not read."""

_Buffer = bytes | bytearray | memoryview


class _Register(Protocol):
    """The connections of a front end."""

    def opened(self, connection: Any, transport: asyncio.BaseTransport) -> None: ...

    def lost(self, connection: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class TlsPort:
    """What the connections of one listening socket share."""

    certificates: HeldCertificates
    handshakes: Handshakes
    register: _Register
    plain_answer: bytes = b""
    """What a client gets that begins with anything but a handshake."""


class _State(enum.Enum):
    SHAKING = enum.auto()
    OPEN = enum.auto()
    ENDING = enum.auto()
    """Nothing more is read; what was written before is still to go."""
    DEAF = enum.auto()
    """The same, and everything has gone: what still comes is dropped."""


class TlsChannel(asyncio.Protocol, asyncio.Transport):
    """``make`` makes the protocol once the handshake is over; until then this is the connection that is registered."""

    def __init__(self, port: TlsPort, make: Callable[[], asyncio.BaseProtocol]) -> None:
        asyncio.Transport.__init__(self)
        self._port = port
        self._make = make
        self._state = _State.SHAKING
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._early = b""
        """What has come while a step of the handshake is computed."""
        self._steps = False
        self._raw: asyncio.Transport | None = None
        self._protocol: Any = None
        self._buffered = False
        self._opened = 0.0
        self._queue: deque[_Buffer] = deque()
        self._queued = 0
        self._full = False
        self._high = _HIGH
        self._held_up = False
        self._paused = False
        self._reading = False
        self._closes = False

    # What the socket's transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast("asyncio.Transport", transport)
        self._opened = asyncio.get_running_loop().time()
        self._port.handshakes.begin(self)
        self._port.register.opened(self, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._raw = None
        self._queue.clear()
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(exc)
        else:
            self._shaken()

    def data_received(self, data: bytes) -> None:
        if self._state is _State.OPEN:
            self._incoming.write(data)
            self._read()
        elif self._state is _State.SHAKING:
            self._shake(data)

    def eof_received(self) -> bool | None:
        if self._protocol is None:
            return None
        self._protocol.eof_received()
        self.close()
        return bool(self._queue)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._send()
        if self._held_up and not self._full:
            self._held_up = False
            if self._protocol is not None:
                self._protocol.resume_writing()

    # The handshake.

    def _shake(self, data: bytes) -> None:
        tls, raw = self._tls, self._raw
        if self._steps:
            self._early += data
            return
        if raw is None:
            return
        if tls is None:
            if data[0] != _HANDSHAKE_RECORD:
                self._refuse_plain()
                return
            context = self._port.certificates.context
            tls = self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._incoming.write(data)
        self._steps = True
        raw.pause_reading()  # little is kept for a client whose turn has not come
        self._port.handshakes.step(self, tls, self._stepped)

    def _stepped(self, outcome: Outcome) -> None:
        self._steps = False
        tls, raw = self._tls, self._raw
        if tls is None or raw is None or raw.is_closing():
            return
        self._flush()  # its next message, or the alert
        early, self._early = self._early, b""
        if outcome is Outcome.FAILED:
            self._end_raw()
            return
        raw.resume_reading()
        if outcome is Outcome.DONE:
            self._incoming.write(early)
            self._begin(tls)
        elif early:
            self._shake(early)

    def _begin(self, tls: ssl.SSLObject) -> None:
        self._state = _State.OPEN
        self.set_protocol(self._make())
        self._protocol.connection_made(self)
        self._shaken()
        self._read()

    def _shaken(self) -> None:
        self._port.handshakes.end(self)
        self._port.register.lost(self)

    def _refuse_plain(self) -> None:
        """The connection ends with the time for a handshake at the latest: until then what still comes is dropped."""
        raw = self._raw
        self._state = _State.DEAF
        if raw is not None and self._port.plain_answer:
            raw.write(self._port.plain_answer)
            raw.write_eof()
        else:
            self._end_raw()

    # As one of the connections, while the handshake lasts.

    def flush(self) -> None:
        """There are no answers yet."""

    def untried(self, since: float) -> bool:
        """Whether it has been opened after ``since``, by the loop's clock: its first request may be on its way."""
        return self._opened > since

    def close_if_stalled(self) -> None:
        """Handshakes have a clock of their own."""

    def progress(self) -> float | None:
        """None: it has not begun."""
        return None if self._raw is None or self._raw.is_closing() else 0.0

    # From the socket to the protocol.

    def _read(self) -> None:
        """Hand on what can be decrypted, as long as the protocol wants it."""
        if self._reading:
            return
        self._reading = True
        try:
            while self._state is _State.OPEN and not self._paused and self._raw is not None:
                if not (self._read_into() if self._buffered else self._read_pieces()):
                    break
        except ssl.SSLError as error:
            logger.debug("a TLS connection failed: %s", error)
            self._flush()
            self.abort()
        finally:
            self._reading = False
        self._flush()

    def _read_pieces(self) -> bool:
        """Hand on all that is there at once, as a socket does; False if nothing is left."""
        assert self._tls is not None
        data, ended = read_all(self._tls, self._incoming)
        if data:
            self._protocol.data_received(data)
        if ended:
            self._ended()
        return bool(data) and not ended

    def _read_into(self) -> bool:
        """The same for a protocol that has its own memory."""
        assert self._tls is not None
        size, ended = read_into(self._tls, self._incoming, self._protocol.get_buffer(-1))
        if size:
            self._protocol.buffer_updated(size)
        if ended:
            self._ended()
        return bool(size) and not ended

    def _ended(self) -> None:
        """The client has announced that it sends no more."""
        if self._protocol is not None:
            self._protocol.eof_received()
        self.close()

    # From the protocol to the socket.

    def write(self, data: _Buffer) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[_Buffer]) -> None:
        if self._state is not _State.OPEN:
            return
        for data in list_of_data:
            if data:
                self._queue.append(data)
                self._queued += len(data)
        self._send()
        if self._full and not self._held_up and self.get_write_buffer_size() > self._high:
            self._held_up = True
            self._protocol.pause_writing()

    def _send(self) -> None:
        """Encrypt as much as the socket takes."""
        tls, raw, queue = self._tls, self._raw, self._queue
        if tls is None or raw is None:
            return
        try:
            while queue and not self._full:
                piece = queue.popleft()
                if len(piece) > _SLICE:
                    whole = memoryview(piece)
                    piece, rest = whole[:_SLICE], whole[_SLICE:]
                    queue.appendleft(rest)
                self._queued -= len(piece)
                tls.write(piece)
                raw.write(self._outgoing.read())
        except ssl.SSLError as error:
            logger.debug("a TLS connection failed: %s", error)
            self.abort()
            return
        if self._state is _State.ENDING and not queue:
            self._say_goodbye(tls)

    def _flush(self) -> None:
        """Write the records of TLS itself."""
        raw = self._raw
        if raw is not None and self._outgoing.pending:
            raw.write(self._outgoing.read())
            if raw.get_write_buffer_size() > _CONTROL:
                raw.abort()

    # The end.

    def close(self) -> None:
        if self._state is _State.SHAKING:
            self.abort()
        else:
            self._closes = True
            self._end()

    def write_eof(self) -> None:
        """Send nothing after what has been written, and drop what still comes until :meth:`close`."""
        self._end()

    def _end(self) -> None:
        if self._state is _State.OPEN:
            self._state = _State.ENDING
            self._send()
        elif self._state is _State.DEAF and self._closes:
            self._end_raw()

    def _say_goodbye(self, tls: ssl.SSLObject) -> None:
        self._state = _State.DEAF
        with contextlib.suppress(ssl.SSLError):  # the client need not announce its end, too
            tls.unwrap()
        self._flush()
        if self._closes:
            self._end_raw()
        elif self._raw is not None and self._raw.can_write_eof():
            self._raw.write_eof()

    def _end_raw(self) -> None:
        if self._raw is not None:
            self._raw.close()

    def abort(self) -> None:
        if self._raw is not None:
            self._raw.abort()

    def is_closing(self) -> bool:
        return self._closes or self._raw is None or self._raw.is_closing()

    # The rest of a transport.

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None:
        self._paused = True
        if self._raw is not None and not self._raw.is_closing():
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        if self._raw is not None and not self._raw.is_closing():
            self._raw.resume_reading()
            asyncio.get_running_loop().call_soon(self._read)

    def is_reading(self) -> bool:
        return not self._paused and self._state is _State.OPEN

    def get_write_buffer_size(self) -> int:
        """Bytes that the client has not taken: those of the socket's transport, too."""
        return self._queued + (self._raw.get_write_buffer_size() if self._raw is not None else 0)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Only ``high``: writing goes on when the socket's transport wants more."""
        self._high = _HIGH if high is None else high

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast("asyncio.BaseProtocol", self._protocol)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """``ssl_object``, which has the certificate of the client; else what the socket's transport has."""
        if name == "ssl_object":
            return self._tls
        return self._raw.get_extra_info(name, default) if self._raw is not None else default
