"""The state table of docs/reference/http2.md, line by line: what each frame does in each state."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from repoagent_server.grpc.http2.control import STREAM_WINDOW
from repoagent_server.grpc.http2.frames import PREFACE

from .conftest import Server, data_frame, headers_frame, message
from .raw_client import HEADERS

CODES: Final = (
    "NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED",
    "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM",
)  # fmt: skip
PAGE: Final = Path(__file__).parents[4] / "docs" / "reference" / "http2.md"


def raw(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def block(*more: tuple[str, str], without: str = "") -> bytes:
    return Encoder().encode([field for field in (*HEADERS, *more) if field[0] != without])


def opened(*flags: str) -> list[Frame]:
    return [headers_frame(1, "END_HEADERS", *flags)]


def unfinished() -> HeadersFrame:
    return HeadersFrame(1, block())


def update(stream: int, size: int) -> bytes:
    return raw(8, 0, stream, size.to_bytes(4, "big"))


def priority_on_itself() -> HeadersFrame:
    frame = headers_frame(1, "END_HEADERS", "PRIORITY")
    frame.depends_on = 1
    return frame


def with_length(size: int) -> HeadersFrame:
    return HeadersFrame(1, block(("content-length", str(size))), flags=("END_HEADERS",))


def trailers(*flags: str, fields: tuple[tuple[str, str], ...] = (("a", "b"),)) -> HeadersFrame:
    return headers_frame(1, "END_HEADERS", *flags, fields=fields)


END: Final = "END_STREAM"
BEGUN: Final = HeadersFrame(1, block()[:5], flags=(END,))
REST: Final = ContinuationFrame(1, block()[5:], flags=("END_HEADERS",))
WHOLE: Final = data_frame(1, message(b"x"), "END_STREAM")
ITSELF: Final = b"\0\0\0\1\0"
ANSWERED: Final = "the call is answered"

#: A line of the page: what is sent after the preface and SETTINGS, and what follows.
TABLE: Final[dict[str, tuple[list[Any], str]]] = {
    # The connection.
    "SETTINGS": ([SettingsFrame(settings={4: 70000})], "acknowledged"),
    "SETTINGS with ACK": ([SettingsFrame(flags=("ACK",))], "ignored"),
    "SETTINGS with an unknown setting": ([SettingsFrame(settings={99: 1})], "acknowledged"),
    "SETTINGS on a stream": ([raw(4, 0, 1)], "connection PROTOCOL_ERROR"),
    "SETTINGS of a length that 6 does not divide": ([raw(4, 0, 0, b"12345")], "connection FRAME_SIZE_ERROR"),
    "SETTINGS with ACK and a payload": ([raw(4, 1, 0, b"123456")], "connection FRAME_SIZE_ERROR"),
    "SETTINGS with ENABLE_PUSH above 1": ([SettingsFrame(settings={2: 2})], "connection PROTOCOL_ERROR"),
    "SETTINGS with a window above 2^31-1": ([raw(4, 0, 0, b"\0\4\x80\0\0\0")], "connection FLOW_CONTROL_ERROR"),
    "SETTINGS with a frame size below 16384": ([SettingsFrame(settings={5: 16383})], "connection PROTOCOL_ERROR"),
    "SETTINGS with a frame size above 2^24-1": ([SettingsFrame(settings={5: 2**24})], "connection PROTOCOL_ERROR"),
    "SETTINGS with more than 64 entries": ([raw(4, 0, 0, bytes(6 * 65))], "connection ENHANCE_YOUR_CALM"),
    "PING": ([PingFrame(0, b"12345678")], "pong"),
    "PING with ACK": ([PingFrame(0, b"12345678", flags=("ACK",))], "ignored"),
    "PING on a stream": ([raw(6, 0, 1, bytes(8))], "connection PROTOCOL_ERROR"),
    "PING not of 8 bytes": ([raw(6, 0, 0, bytes(7))], "connection FRAME_SIZE_ERROR"),
    "WINDOW_UPDATE of the connection": ([WindowUpdateFrame(0, 5)], "ignored"),
    "WINDOW_UPDATE of 0 for the connection": ([update(0, 0)], "connection PROTOCOL_ERROR"),
    "WINDOW_UPDATE past 2^31-1 for the connection": ([update(0, 2**31 - 1)], "connection FLOW_CONTROL_ERROR"),
    "WINDOW_UPDATE not of 4 bytes": ([raw(8, 0, 0, bytes(3))], "connection FRAME_SIZE_ERROR"),
    "GOAWAY": ([GoAwayFrame(0)], "ignored"),
    "GOAWAY on a stream": ([raw(7, 0, 1, bytes(8))], "connection PROTOCOL_ERROR"),
    "GOAWAY of under 8 bytes": ([raw(7, 0, 0, bytes(7))], "connection FRAME_SIZE_ERROR"),
    "PUSH_PROMISE": ([PushPromiseFrame(1, 2, block())], "connection PROTOCOL_ERROR"),
    "a frame of an unknown type": ([raw(77, 0, 0, bytes(100))], "ignored"),
    "a frame above 1 MiB": ([raw(0, 0, 1, bytes((1 << 20) + 1))[:100]], "connection FRAME_SIZE_ERROR"),
    # Idle streams.
    "idle: HEADERS": ([*opened(), WHOLE], ANSWERED),
    "idle: HEADERS with END_STREAM": (opened("END_STREAM"), ANSWERED),
    "idle: HEADERS on an even stream": ([headers_frame(2)], "connection PROTOCOL_ERROR"),
    "idle: HEADERS on stream 0": ([raw(1, 4, 0, block())], "connection PROTOCOL_ERROR"),
    "idle: HEADERS on a lower stream than before": (
        [headers_frame(5), headers_frame(3)],
        "connection STREAM_CLOSED",
    ),
    "idle: HEADERS with more padding than frame": (
        [raw(1, 12, 1, b"\xff" + block())],
        "connection PROTOCOL_ERROR",
    ),
    "idle: HEADERS with PRIORITY cut short": ([raw(1, 36, 1, b"123")], "connection FRAME_SIZE_ERROR"),
    "idle: HEADERS that depend on themselves": ([priority_on_itself()], "stream PROTOCOL_ERROR"),
    "idle: HEADERS that cannot be decoded": ([raw(1, 4, 1, b"\x80")], "connection COMPRESSION_ERROR"),
    "idle: HEADERS without a path": ([raw(1, 4, 1, block(without=":path"))], "stream PROTOCOL_ERROR"),
    "idle: HEADERS with a connection header": ([raw(1, 4, 1, block(("connection", "x")))], "stream PROTOCOL_ERROR"),
    "idle: HEADERS with a capital in a name": ([raw(1, 4, 1, block() + b"\0\1A\1b")], "stream PROTOCOL_ERROR"),
    "idle: HEADERS of more than 16 KiB decompressed": (
        [raw(1, 4, 1, block(*((f"k{n}", "v" * 1000) for n in range(20))))],
        "connection COMPRESSION_ERROR",
    ),
    "idle: HEADERS of more than 32 KiB": ([raw(1, 4, 1, bytes(40000))], "connection ENHANCE_YOUR_CALM"),
    "idle: DATA": ([data_frame(1, b"x")], "connection PROTOCOL_ERROR"),
    "idle: DATA on stream 0": ([raw(0, 0, 0, b"x")], "connection PROTOCOL_ERROR"),
    "idle: RST_STREAM": ([RstStreamFrame(1, 8)], "connection PROTOCOL_ERROR"),
    "idle: RST_STREAM on stream 0": ([raw(3, 0, 0, bytes(4))], "connection PROTOCOL_ERROR"),
    "idle: WINDOW_UPDATE": ([WindowUpdateFrame(1, 1)], "connection PROTOCOL_ERROR"),
    "idle: PRIORITY": ([PriorityFrame(1)], "ignored"),
    "idle: PRIORITY on stream 0": ([raw(2, 0, 0, bytes(5))], "connection PROTOCOL_ERROR"),
    "idle: PRIORITY not of 5 bytes": ([raw(2, 0, 1, bytes(4))], "connection FRAME_SIZE_ERROR"),
    "idle: PRIORITY that depends on itself": ([raw(2, 0, 1, ITSELF)], "connection PROTOCOL_ERROR"),
    "idle: CONTINUATION": ([ContinuationFrame(1, block())], "connection PROTOCOL_ERROR"),
    # A block of headers that goes on.
    "open block: CONTINUATION": (
        [BEGUN, REST],
        ANSWERED,
    ),
    "open block: CONTINUATION of another stream": (
        [unfinished(), ContinuationFrame(3, b"")],
        "connection PROTOCOL_ERROR",
    ),
    "open block: any other frame": ([unfinished(), PingFrame(0)], "connection PROTOCOL_ERROR"),
    "open block: DATA that is not all there": (
        [unfinished(), raw(0, 0, 1, bytes(99))[:50]],
        "connection PROTOCOL_ERROR",
    ),
    "open block: more than 16 frames": (
        [unfinished(), *[ContinuationFrame(1, b"")] * 16],
        "connection ENHANCE_YOUR_CALM",
    ),
    "open block: more than 32 KiB": (
        [unfinished(), *[ContinuationFrame(1, bytes(16000))] * 3],
        "connection ENHANCE_YOUR_CALM",
    ),
    # Open streams.
    "open: DATA": ([*opened(), data_frame(1, message(b"xy")[:6]), data_frame(1, b"y", "END_STREAM")], ANSWERED),
    "open: DATA with more padding than frame": ([*opened(), raw(0, 8, 1, b"\x05abc")], "connection PROTOCOL_ERROR"),
    "open: DATA with PADDED and no bytes": ([*opened(), raw(0, 8, 1)], "connection PROTOCOL_ERROR"),
    "open: DATA past the stream's window": (
        [*opened(), *[raw(0, 0, 1, bytes(1 << 20))] * (STREAM_WINDOW >> 20), data_frame(1, b"x")],
        "stream FLOW_CONTROL_ERROR",
    ),
    "open: DATA past content-length": ([with_length(3), data_frame(1, b"abcd")], "stream PROTOCOL_ERROR"),
    "open: an end before content-length": ([with_length(9), data_frame(1, b"ab", END)], "stream PROTOCOL_ERROR"),
    "open: HEADERS with END_STREAM": ([*opened(), trailers(END)], ANSWERED),
    "open: HEADERS without END_STREAM": ([*opened(), trailers()], "stream PROTOCOL_ERROR"),
    "open: trailers with a pseudo-header": (
        [*opened(), trailers(END, fields=((":path", "/"),))],
        "stream PROTOCOL_ERROR",
    ),
    "open: RST_STREAM": ([*opened(), RstStreamFrame(1, 8)], "the call is cancelled"),
    "open: RST_STREAM not of 4 bytes": ([*opened(), raw(3, 0, 1, bytes(3))], "connection FRAME_SIZE_ERROR"),
    "open: WINDOW_UPDATE": ([*opened(), WindowUpdateFrame(1, 9), WHOLE], ANSWERED),
    "open: WINDOW_UPDATE of 0": ([*opened(), update(1, 0)], "stream PROTOCOL_ERROR"),
    "open: WINDOW_UPDATE past 2^31-1": ([*opened(), update(1, 2**31 - 1)], "stream FLOW_CONTROL_ERROR"),
    "open: PRIORITY": ([*opened(), PriorityFrame(1, depends_on=3), WHOLE], ANSWERED),
    "open: PRIORITY not of 5 bytes": ([*opened(), raw(2, 0, 1, bytes(4))], "stream FRAME_SIZE_ERROR"),
    "open: PRIORITY that depends on itself": ([*opened(), raw(2, 0, 1, ITSELF)], "stream PROTOCOL_ERROR"),
    # Half-closed: the client has sent all.
    "half-closed: DATA": ([*opened("END_STREAM"), data_frame(1, b"x")], "stream STREAM_CLOSED"),
    "half-closed: HEADERS": ([*opened(END), *opened(END)], "stream STREAM_CLOSED"),
    "half-closed: WINDOW_UPDATE": ([*opened("END_STREAM"), WindowUpdateFrame(1, 9)], ANSWERED),
    "half-closed: RST_STREAM": ([*opened("END_STREAM"), RstStreamFrame(1, 8)], "the call is cancelled"),
    # Closed by the client.
    "reset by the client: DATA": ([*opened(), RstStreamFrame(1), data_frame(1, b"x")], "stream STREAM_CLOSED"),
    "reset by the client: HEADERS": ([*opened(), RstStreamFrame(1), *opened()], "connection STREAM_CLOSED"),
    "reset by the client: WINDOW_UPDATE, RST_STREAM, PRIORITY": (
        [*opened(), RstStreamFrame(1), WindowUpdateFrame(1, 1), RstStreamFrame(1), PriorityFrame(1)],
        "the call is cancelled",
    ),
}  # fmt: skip

#: The same after an answer: complete, or before the client had sent all.
AFTER: Final[dict[str, tuple[bool, list[Any], str]]] = {
    "answered: DATA": (True, [data_frame(1, b"x")], "stream STREAM_CLOSED"),
    "answered: HEADERS": (True, opened(), "connection STREAM_CLOSED"),
    "answered: WINDOW_UPDATE, RST_STREAM, PRIORITY": (
        True,
        [WindowUpdateFrame(1, 1), RstStreamFrame(1), PriorityFrame(1)],
        "ignored",
    ),
    "answered early: DATA": (False, [data_frame(1, b"x" * 100), WHOLE], "ignored"),
    "answered early: trailers": (False, [headers_frame(1, "END_HEADERS", "END_STREAM")], "ignored"),
    "answered early: RST_STREAM": (False, [RstStreamFrame(1)], "ignored"),
}

#: Before the client's SETTINGS.
FIRST: Final[dict[str, tuple[list[Any], str]]] = {
    "the preface is not HTTP/2": ([b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"], "connection PROTOCOL_ERROR"),
    "another frame comes before SETTINGS": ([PREFACE, PingFrame(0)], "connection PROTOCOL_ERROR"),
    "HEADERS come before SETTINGS": ([PREFACE, headers_frame(1)], "connection PROTOCOL_ERROR"),
    "SETTINGS with ACK come first": ([PREFACE, SettingsFrame(flags=("ACK",))], "connection PROTOCOL_ERROR"),
}


def outcome(server: Server, answers: list[Frame]) -> str:
    """What the frames mean that a server answered with, in the words of the page."""
    for frame in answers:
        if isinstance(frame, GoAwayFrame):
            assert server.connection.control.closed
            return f"connection {CODES[frame.error_code]}"
        if isinstance(frame, RstStreamFrame):
            assert not server.connection.control.closed
            return f"stream {CODES[frame.error_code]}"
        if isinstance(frame, SettingsFrame):
            return "acknowledged"
        if isinstance(frame, PingFrame):
            return "pong" if frame.opaque_data == b"12345678" else "another pong"
    if any(call.is_lost for call in server.calls.values()):
        return "the call is cancelled"
    for call in server.calls.values():
        if call.ended:
            server.connection.sender.reply(call.stream, b"good")
            bodies = [frame.data for frame in server.receive() if isinstance(frame, DataFrame)]
            assert bodies == [message(b"good")]
            return ANSWERED
    return "ignored"


@pytest.mark.parametrize(("sent", "expected"), TABLE.values(), ids=TABLE)
def test_a_line_of_the_table(sent: list[Any], expected: str) -> None:
    server = Server().greet()
    assert outcome(server, server.receive(*sent)) == expected
    _goes_on(server, expected)


@pytest.mark.parametrize(("complete", "sent", "expected"), AFTER.values(), ids=AFTER)
def test_a_line_of_the_table_after_an_answer(complete: bool, sent: list[Any], expected: str) -> None:
    server = Server().greet()
    server.receive(*opened(*(["END_STREAM"] if complete else [])))
    server.connection.sender.reply(server.calls.pop(1).stream, b"answer")
    server.receive()
    assert outcome(server, server.receive(*sent)) == expected
    _goes_on(server, expected)


@pytest.mark.parametrize(("sent", "expected"), FIRST.values(), ids=FIRST)
def test_a_line_of_the_table_before_settings(sent: list[Any], expected: str) -> None:
    server = Server()
    server.take_out()
    assert outcome(server, server.receive(*sent)) == expected


@pytest.mark.parametrize(("sent", "expected"), TABLE.values(), ids=TABLE)
def test_it_makes_no_difference_how_the_bytes_come(sent: list[Any], expected: str) -> None:
    """The same byte by byte: frames cut at every place."""
    data = b"".join(piece.serialize() if isinstance(piece, Frame) else piece for piece in sent)
    if len(data) > 100_000:
        return
    server = Server().greet()
    for at in range(len(data)):
        server.connection.receive(data[at : at + 1])
    assert outcome(server, server.receive()) == expected


def _goes_on(server: Server, expected: str) -> None:
    """After all that does not end the connection, the next call is served."""
    if expected.startswith("connection"):
        before = len(server.calls)
        assert server.receive(headers_frame(101, "END_HEADERS", "END_STREAM")) == []
        assert len(server.calls) == before
    else:
        server.receive(headers_frame(101, "END_HEADERS", "END_STREAM"))
        assert server.calls[101].ended


def test_the_page_has_each_line() -> None:
    lines = re.findall(r"^\| (.+?) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)
    every: dict[str, str] = {
        **{name: expected for name, (_, expected) in (TABLE | FIRST).items()},
        **{name: expected for name, (_, _, expected) in AFTER.items()},
    }
    assert {name: found for name, found in lines if name in every} == every


Send = Callable[[Server], list[Frame]]


def _calls(count: int) -> list[Frame]:
    encoder = Encoder()
    return [
        frame
        for number in range(1, 2 * count, 2)
        for frame in (headers_frame(number, encoder=encoder), RstStreamFrame(number, 8))
    ]


TRAILER: Final = b"\0\1a\1b"


def _faulty(fault: Callable[[int], Any], *flags: str) -> Callable[[], list[Any]]:
    """Calls that the client has the server reset: after a message with ``flags``, ``fault`` is not allowed."""

    def frames() -> list[Any]:
        encoder = Encoder()
        return [
            piece
            for number in range(1, 2 * 1200, 2)
            for piece in (
                headers_frame(number, encoder=encoder),
                data_frame(number, message(b"x"), *flags),
                fault(number),
            )
        ]

    return frames


#: More of a frame than a client has use for.
FLOODS: Final[dict[str, Callable[[], list[Any]]]] = {
    "rapid resets": lambda: _calls(1200),
    "PING": lambda: [PingFrame(0, b"12345678")] * 4,
    "PING with ACK": lambda: [PingFrame(0, b"12345678", flags=("ACK",))] * 5000,
    "SETTINGS": lambda: [SettingsFrame(settings={4: 70000})] * 5000,
    "WINDOW_UPDATE": lambda: [WindowUpdateFrame(0, 1)] * 5000,
    "PRIORITY": lambda: [PriorityFrame(1)] * 5000,
    "empty DATA": lambda: [*opened(), *[data_frame(1, b"")] * 5000],
    "padding without data": lambda: [*opened(), *[raw(0, 8, 1, b"\0")] * 5000],
    "RST_STREAM": lambda: [*opened(), *[RstStreamFrame(1)] * 5000],
    "DATA on a closed stream": lambda: [*opened(), RstStreamFrame(1), *[data_frame(1, b"x")] * 5000],
    "trailers on a closed stream": lambda: [*opened(), RstStreamFrame(1), data_frame(1, b"x"), *opened() * 5000],
    "malformed calls": lambda: [raw(1, 4, n, block(without=":path")) for n in range(1, 3000, 2)],
    "refused calls": lambda: [headers_frame(n) for n in range(1, 2 * 2300, 2)],
    "unknown frames": lambda: [raw(77, 0, 0)] * 5000,
    "GOAWAY": lambda: [GoAwayFrame(0)] * 5000,
    "HEADERS behind the end": _faulty(lambda number: raw(1, 5, number, TRAILER), END),
    "DATA behind the end": _faulty(lambda number: data_frame(number, b"x"), END),
    "WINDOW_UPDATE of 0": _faulty(lambda number: update(number, 0), END),
    "WINDOW_UPDATE past all windows": _faulty(lambda number: update(number, (1 << 31) - 1), END),
    "PRIORITY cut short": _faulty(lambda number: raw(2, 0, number, b"x"), END),
    "trailers without an end": _faulty(lambda number: raw(1, 4, number, TRAILER)),
}


@pytest.mark.slow
@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_flood_ends_the_connection(flood: Callable[[], list[Any]]) -> None:
    server = Server().greet()
    data = b"".join(piece.serialize() if isinstance(piece, Frame) else piece for piece in flood())
    answers = server.receive(data)
    assert [frame.error_code for frame in answers if isinstance(frame, GoAwayFrame)] == [11]
    server.connection.control.lost()
    assert server.reserve.held == 0


@pytest.mark.slow
def test_who_takes_answers_may_cancel_as_many_calls() -> None:
    """Deadlines that run out by the thousand are no attack."""
    server = Server().greet()
    encoder = Encoder()
    for number in range(1, 20_000, 4):
        server.receive(
            headers_frame(number, "END_HEADERS", "END_STREAM", encoder=encoder),
            headers_frame(number + 2, encoder=encoder),
            RstStreamFrame(number + 2, 8),
        )
        server.connection.sender.reply(server.calls.pop(number).stream, b"")
        assert server.calls.pop(number + 2).is_lost
    assert not server.connection.control.closed


@pytest.mark.slow
def test_pings_between_answers_are_no_flood() -> None:
    server = Server().greet()
    encoder = Encoder()
    for number in range(1, 10_000, 2):
        server.receive(headers_frame(number, "END_HEADERS", "END_STREAM", encoder=encoder), WindowUpdateFrame(0, 5))
        server.connection.sender.reply(server.calls.pop(number).stream, b"")
        server.receive(PingFrame(0, b"12345678"))
    assert not server.connection.control.closed
