"""A load generator for gRPC.

``load_grpc.py HOST PORT CONNECTIONS SECONDS [NAME=VALUE ...]`` makes the unary call ModelInfer with the bytes on its
standard input over and over, one call at a time on each connection, and prints the calls per second. The names and
values are metadata of the calls. Its HTTP/2 is the least that will do:
frames made once, of which only the stream's number changes, and a look for the frame that ends an answer. So little of
the machine goes into this.
"""

import selectors
import socket
import struct
import sys
import time
from collections.abc import Sequence

from hpack import Encoder

METHOD = "/inference.GRPCInferenceService/ModelInfer"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
WINDOW = (1 << 31) - 1
GIVE_BACK = 1 << 20
FRAME = 1 << 14


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


class Client:
    """One connection, with one call at a time."""

    def __init__(self, host: str, port: int, message: bytes, metadata: Sequence[tuple[str, str]] = ()) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", METHOD),
            (":authority", host),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *metadata,
        ]
        encoder = Encoder()
        encoder.header_table_size = 0
        self._head = encoder.encode(fields)[1:]  # without the update of the table's size, which is sent once
        body = struct.pack(">BI", 0, len(message)) + message
        self._pieces = [body[at : at + FRAME] for at in range(0, len(body), FRAME)]
        self._stream = -1
        self._rest = b""
        self._received = 0
        settings = struct.pack(">HI", 4, WINDOW)
        self.socket.sendall(
            PREFACE + frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW - 65535))
        )
        self.call(first=True)

    def call(self, first: bool = False) -> None:
        self._stream += 2
        head = b"\x20" + self._head if first else self._head
        out = [frame(HEADERS, END_HEADERS, self._stream, head)]
        last = len(self._pieces) - 1
        out += [
            frame(DATA, END_STREAM if index == last else 0, self._stream, piece)
            for index, piece in enumerate(self._pieces)
        ]
        self.socket.sendall(b"".join(out))

    def answered(self) -> bool:
        """Read; whether the call's answer is complete."""
        received = self.socket.recv(1 << 18)
        if not received:
            raise SystemExit("the server has closed the connection")
        data, position, done = self._rest + received, 0, False
        while len(data) - position >= 9:
            word, flags, stream = struct.unpack_from(">IBI", data, position)
            length, kind = word >> 8, word & 0xFF
            if position + 9 + length > len(data):
                break
            payload = data[position + 9 : position + 9 + length]
            position += 9 + length
            done = self._take(kind, flags, stream, payload) or done
        self._rest = data[position:]
        return done

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> bool:
        if kind == SETTINGS and not flags & ACK:
            self.socket.sendall(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.socket.sendall(frame(PING, ACK, 0, payload))
        elif kind in (GOAWAY, RST_STREAM):
            raise SystemExit(f"the server ends the call: {payload!r}")
        elif kind == DATA:
            self._received += len(payload)
            if self._received > GIVE_BACK:
                self.socket.sendall(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._received)))
                self._received = 0
        return kind == HEADERS and bool(flags & END_STREAM) and stream == self._stream


def run(
    host: str,
    port: int,
    message: bytes,
    connections: int,
    seconds: float,
    metadata: Sequence[tuple[str, str]] = (),
) -> float:
    with selectors.DefaultSelector() as selector:
        clients = [Client(host, port, message, metadata) for _ in range(connections)]
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
        waiting = set(clients)
        while waiting:  # the first call of each is for warming up
            waiting -= {key.data for key, _ in selector.select() if key.data.answered()}
        started = time.monotonic()
        deadline, answers = started + seconds, 0
        for client in clients:
            client.call()
        while time.monotonic() < deadline:
            for key, _ in selector.select():
                if key.data.answered():
                    answers += 1
                    key.data.call()
        return answers / (time.monotonic() - started)


def main() -> None:
    host, port, connections, seconds, *pairs = sys.argv[1:]
    metadata = [(name, value) for name, _, value in (pair.partition("=") for pair in pairs)]
    print(run(host, int(port), sys.stdin.buffer.read(), int(connections), float(seconds), metadata))


if __name__ == "__main__":
    main()
