"""What a connection over a socket holds for its client."""

import asyncio
from collections.abc import Iterable
from typing import Any

from hyperframe.frame import SettingsFrame, WindowUpdateFrame
from repoagent_server.grpc.http2.frames import PREFACE
from repoagent_server.grpc.http2.socket_protocol import SocketProtocol
from repoagent_server.shared.connections import Connections
from repoagent_server.shared.grpc_options import GrpcOptions
from repoagent_server.shared.reserve import Reserve

from .conftest import Recorder, Server, frames_of, headers_frame, message


class _Full(asyncio.Transport):
    """A socket that takes nothing more."""

    waiting = 0

    def write(self, data: Any) -> None:
        self.waiting += len(data)

    def writelines(self, pieces: Iterable[Any]) -> None:
        self.waiting += sum(map(len, pieces))

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def is_closing(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return True


class _Application(Recorder):
    """In place of a dispatcher."""

    def __init__(self, reserve: Reserve) -> None:
        super().__init__()
        self.reserve = reserve
        self.loop = asyncio.get_running_loop()


async def test_what_waits_in_the_transport_is_held_until_the_client_takes_it_or_goes() -> None:
    application, transport = _Application(Reserve(1 << 30)), _Full()
    protocol = SocketProtocol(application, Connections(application.loop, 60), GrpcOptions())  # type: ignore[arg-type]
    protocol.connection_made(transport)
    wide = 1 << 30
    windows = SettingsFrame(settings={SettingsFrame.INITIAL_WINDOW_SIZE: wide, SettingsFrame.MAX_FRAME_SIZE: 1 << 23})
    protocol.data_received(PREFACE + windows.serialize() + WindowUpdateFrame(0, window_increment=wide).serialize())
    for number, size in ((1, 1000), (3, 300_000)):
        protocol.data_received(headers_frame(number, "END_HEADERS", "END_STREAM").serialize())
        protocol.connection.sender.reply(application.calls[number].stream, message(b"x" * size))
        protocol.flush()
        assert application.reserve.held >= transport.waiting >= size
    transport.waiting = 10
    protocol.resume_writing()
    assert application.reserve.held == 10
    protocol.connection_lost(None)
    assert application.reserve.held == 0


def test_a_large_answer_for_which_the_windows_have_room_needs_room_in_the_reserve_too() -> None:
    server = Server(limit=1 << 16).greet()
    windows = SettingsFrame(
        settings={SettingsFrame.INITIAL_WINDOW_SIZE: 1 << 30, SettingsFrame.MAX_FRAME_SIZE: 1 << 23}
    )
    server.receive(windows, WindowUpdateFrame(0, window_increment=1 << 30))
    server.receive(headers_frame(1, "END_HEADERS", "END_STREAM"))
    assert server.reserve.take(0, 1 << 15)
    server.connection.sender.reply(server.calls[1].stream, message(b"x" * 300_000))
    (answer,) = frames_of(server.take_out())
    assert b"--limit-held-bytes" in answer.data
