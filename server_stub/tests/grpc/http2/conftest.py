"""A connection without a socket, and clients that we did not write: h2, or frames of hyperframe."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from hpack import Encoder
from hyperframe.frame import DataFrame, Frame, HeadersFrame, SettingsFrame
from repoagent_server.grpc.http2.connection import Connection
from repoagent_server.grpc.http2.control import Rules
from repoagent_server.grpc.http2.frames import PREFACE
from repoagent_server.grpc.http2.head import RequestHead, Stream
from repoagent_server.shared.reserve import Reserve

from .raw_client import HEADERS


@dataclass
class Clock:
    """Seconds that pass when a test says so."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class RecordedCall:
    """What became of one stream."""

    stream: Stream
    body: bytes = b""
    ended: bool = False
    is_lost: bool = False
    times_drained: int = 0
    unfinished: bool = False

    def data(self, data: bytes, start: int, stop: int, ended: bool) -> None:
        self.body += data[start:stop]
        self.ended = ended

    def lost(self) -> None:
        self.is_lost = True

    def drained(self) -> None:
        self.times_drained += 1


@dataclass
class Recorder:
    """An application that keeps what it is given. ``lazy``: calls are made when their bytes come."""

    lazy: bool = False
    calls: dict[int, RecordedCall] = field(default_factory=dict)

    def route(self, head: RequestHead) -> None:
        head.route, head.lazy = "route", self.lazy

    def opened(self, connection: Connection, stream: Stream) -> None:
        stream.call = self.calls[stream.id] = RecordedCall(stream)

    def data(self, connection: Connection, stream: Stream, data: bytes, start: int, stop: int, ended: bool) -> None:
        if stream.call is None:
            self.opened(connection, stream)
        self.calls[stream.id].data(data, start, stop, ended)


class Server:
    """Ours, without a socket."""

    def __init__(
        self,
        *,
        lazy: bool = False,
        rules: Rules | None = None,
        limit: int = 1 << 30,
        application: Recorder | None = None,
    ) -> None:
        self.clock = Clock()
        self.application = application or Recorder(lazy)
        self.reserve = Reserve(limit)
        self.connection = Connection(self.application, rules or Rules(), self.reserve, self.clock)
        self.connection.control.open()

    @property
    def calls(self) -> dict[int, RecordedCall]:
        return self.application.calls

    def take_out(self) -> bytes:
        """What it has to write, all of it."""
        out = b""
        while self.connection.sender.out:
            out += b"".join(self.connection.sender.taken())
            self.connection.sender.go_on()
        return out

    def receive(self, *pieces: bytes | Frame) -> list[Any]:
        """Give it bytes or frames; the frames that it answers with."""
        for piece in pieces:
            self.connection.receive(piece.serialize() if isinstance(piece, Frame) else piece)
            while self.connection.more:
                self.connection.receive(b"")
        return frames_of(self.take_out())

    def greet(self) -> "Server":
        """Preface and SETTINGS of a client; nothing else happens."""
        self.receive(PREFACE, SettingsFrame())
        return self


def frames_of(data: bytes) -> list[Any]:
    """Parsed by hyperframe."""
    found: list[Any] = []
    while data:
        frame, length = Frame.parse_frame_header(memoryview(data[:9]))
        frame.parse_body(memoryview(data[9 : 9 + length]))
        found.append(frame)
        data = data[9 + length :]
    return found


def headers_frame(stream: int = 1, *flags: str, fields: Any = HEADERS, encoder: Encoder | None = None) -> HeadersFrame:
    """HEADERS of a call; END_HEADERS unless other flags are given."""
    return HeadersFrame(stream, (encoder or Encoder()).encode(fields), flags=flags or ("END_HEADERS",))


def data_frame(stream: int, data: bytes, *flags: str) -> DataFrame:
    return DataFrame(stream, data, flags=flags)


def message(body: bytes, compressed: int = 0) -> bytes:
    """With gRPC's prefix."""
    return bytes((compressed,)) + len(body).to_bytes(4, "big") + body


class Client:
    """h2 in front of a server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.events: list[Any] = []
        self.exchange()

    def exchange(self) -> list[Any]:
        """Let both have what the other one has sent; the events that h2 makes of it."""
        new: list[Any] = []
        while True:
            sent = self.h2.data_to_send()
            if sent:
                self.server.connection.receive(sent)
            answered = self.server.take_out()
            if answered:
                new += self.h2.receive_data(answered)
            if not sent and not answered:
                self.events += new
                return new

    def call(self, body: bytes = b"", *, end: bool = True, fields: Any = HEADERS) -> int:
        """Send a request; its stream."""
        stream: int = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, fields)
        self.h2.send_data(stream, message(body), end_stream=end)
        self.exchange()
        return stream


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def client(server: Server) -> Client:
    return Client(server)
