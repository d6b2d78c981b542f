"""A client by hand: frames of hyperframe over a socket."""

import socket
from typing import Any, Final

from hpack import Decoder, Encoder
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, SettingsFrame
from repoagent_server.grpc.http2.frames import PREFACE
from repoagent_server.grpc.service import SERVICE

METHOD: Final = f"/{SERVICE}/ModelInfer"
HEADERS: Final = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", METHOD),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


class Raw:
    """A client by hand, over a socket."""

    def __init__(self, address: Any, settings: dict[int, int] | None = None) -> None:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family)
        self.socket.settimeout(60)
        self.socket.connect(address)
        self.encoder = Encoder()
        self.decoder = Decoder()
        self._rest = b""
        self.send(PREFACE, SettingsFrame(settings=settings or {}))

    def send(self, *pieces: bytes | Frame) -> None:
        self.socket.sendall(b"".join(p.serialize() if isinstance(p, Frame) else p for p in pieces))

    def begin(self, stream: int, *more: tuple[str, str], path: str = METHOD, end: bool = False) -> None:
        fields = [(name, path if name == ":path" else value) for name, value in HEADERS]
        flags = ("END_HEADERS", "END_STREAM") if end else ("END_HEADERS",)
        self.send(HeadersFrame(stream, self.encoder.encode([*fields, *more]), flags=flags))

    def data(self, stream: int, data: bytes, *, end: bool = False) -> None:
        self.send(DataFrame(stream, data, flags=("END_STREAM",) if end else ()))

    def frame(self) -> Frame | None:
        """The next one; None at the end of the connection."""
        while True:
            if len(self._rest) >= 9:
                frame, length = Frame.parse_frame_header(memoryview(self._rest[:9]))
                if len(self._rest) >= 9 + length:
                    frame.parse_body(memoryview(self._rest[9 : 9 + length]))
                    self._rest = self._rest[9 + length :]
                    return frame
            try:
                received = self.socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not received:
                return None
            self._rest += received

    def next(self, kind: type[Frame]) -> Any:
        """The next frame of a kind."""
        while (frame := self.frame()) is not None:
            if isinstance(frame, kind):
                return frame
        raise AssertionError(f"the connection ended without a {kind.__name__}")

    def decoded(self, frame: HeadersFrame) -> dict[str, str]:
        return {str(name): str(value) for name, value in self.decoder.decode(frame.data)}

    def fields(self) -> dict[str, str]:
        """Of the next HEADERS."""
        return self.decoded(self.next(HeadersFrame))

    def status(self) -> tuple[str, str]:
        """Of the call that ends next."""
        while "grpc-status" not in (fields := self.fields()):
            pass
        return fields["grpc-status"], fields.get("grpc-message", "")

    def ended(self) -> int:
        """Read to the end of the connection; the code of the last GOAWAY, -1 if there was none."""
        code = -1
        while (frame := self.frame()) is not None:
            if isinstance(frame, GoAwayFrame):
                code = frame.error_code
        return code
