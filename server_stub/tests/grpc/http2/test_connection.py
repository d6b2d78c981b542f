"""A connection against h2, which we did not write, as its client."""

import random
from typing import Any

import pytest
from h2.events import (
    DataReceived,
    PingAckReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes
from hpack import Encoder
from hyperframe.frame import ContinuationFrame, Frame, HeadersFrame, PingFrame, RstStreamFrame, SettingsFrame
from repoagent_server.grpc.http2.connection import Connection
from repoagent_server.grpc.http2.control import CONNECTION_WINDOW, MAX_FRAME, MAX_STREAMS, STREAM_WINDOW
from repoagent_server.grpc.http2.frames import PREFACE
from repoagent_server.grpc.http2.head import Stream

from .conftest import Client, Recorder, Server, data_frame, headers_frame, message
from .raw_client import HEADERS


def of(kind: type, events: list[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def body_of(events: list[Any]) -> bytes:
    return b"".join(event.data for event in of(DataReceived, events))


def test_settings_are_announced_and_acknowledged(client: Client) -> None:
    (changed, *_) = of(RemoteSettingsChanged, client.events)
    values = {code: setting.new_value for code, setting in changed.changed_settings.items()}
    assert values[SettingCodes.MAX_CONCURRENT_STREAMS] == MAX_STREAMS
    assert values[SettingCodes.INITIAL_WINDOW_SIZE] == STREAM_WINDOW
    assert values[SettingCodes.MAX_FRAME_SIZE] == MAX_FRAME
    assert client.h2.outbound_flow_control_window == CONNECTION_WINDOW
    assert of(SettingsAcknowledged, client.events)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_unary_call_is_answered(lazy: bool) -> None:
    server = Server(lazy=lazy)
    client = Client(server)
    for number in range(3):
        stream = client.call(b"question %d" % number)
        call = server.calls[stream]
        assert (call.body, call.ended) == (message(b"question %d" % number), True)
        server.connection.sender.reply(call.stream, b"answer %d" % number)
        events = client.exchange()
        assert dict(of(ResponseReceived, events)[0].headers) == {":status": "200", "content-type": "application/grpc"}
        assert body_of(events) == message(b"answer %d" % number)
        assert dict(of(TrailersReceived, events)[0].headers) == {"grpc-status": "0"}
        assert of(StreamEnded, events)
    assert not server.connection.streams


def test_an_error_is_all_of_its_answer(server: Server, client: Client) -> None:
    stream = client.call()
    server.connection.sender.finish(server.calls[stream].stream, 5, 'no 100 % "ü"\n')
    events = client.exchange()
    assert dict(of(ResponseReceived, events)[0].headers) == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": "5",
        "grpc-message": 'no 100 %25 "%C3%BC"%0A',
    }
    assert of(StreamEnded, events)


def test_a_call_that_is_answered_early_need_not_be_finished(server: Server, client: Client) -> None:
    stream = client.call(b"first", end=False)
    server.connection.sender.finish(server.calls[stream].stream, 3, "no")
    events = client.exchange()
    assert of(StreamEnded, events)
    assert [event.error_code for event in of(StreamReset, events)] == [0]
    # What the client has sent before it heard of that is ignored, and given back to the connection's window.
    more = data_frame(stream, b"x" * 16384)
    assert server.receive(*[more] * 3) == []
    assert [frame.type for frame in server.receive(*[more] * 600)] == [8, 8]


class Refusing(Recorder):
    """Answers a call as soon as its headers are there: with a status of HTTP, or with one of gRPC."""

    def __init__(self, status: bytes) -> None:
        super().__init__()
        self._status = status

    def opened(self, connection: Connection, stream: Stream) -> None:
        if self._status:
            connection.sender.refuse(stream, self._status)
        else:
            connection.sender.finish(stream, 12, "no")


@pytest.mark.parametrize("status", [b"405", b""])
@pytest.mark.parametrize("split", [False, True])
def test_a_call_that_is_answered_by_its_headers_is_reset_only_if_more_was_to_come(status: bytes, split: bool) -> None:
    """RFC 9113, section 5.1: on a stream that both sides have ended, nothing is sent."""
    server = Server(application=Refusing(status)).greet()
    encoder = Encoder()

    def begin(stream: int, *flags: str) -> list[tuple[int, set[str]]]:
        block = encoder.encode(HEADERS)
        if split:
            pieces: list[Frame] = [
                HeadersFrame(stream, block[:5], flags=flags),
                ContinuationFrame(stream, block[5:], flags=("END_HEADERS",)),
            ]
        else:
            pieces = [HeadersFrame(stream, block, flags=("END_HEADERS", *flags))]
        return [(frame.type, set(frame.flags)) for frame in server.receive(*pieces)]

    ended = {"END_HEADERS", "END_STREAM"}
    assert begin(1, "END_STREAM") == [(HeadersFrame.type, ended)]
    assert begin(3) == [(HeadersFrame.type, ended), (RstStreamFrame.type, set())]
    assert not server.connection.streams


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 65_000, 70_000, 1_000_000, 20_000_000])
def test_answers_of_any_size_wait_for_the_clients_windows(server: Server, client: Client, size: int) -> None:
    body = random.Random(size).randbytes(size)
    stream = client.call()
    assert server.connection.sender.send(server.calls[stream].stream, [body[:100], body[100:]])
    server.connection.sender.finish(server.calls[stream].stream)
    assert server.reserve.held == max(0, size + 5 - 65_535)
    found, ended = b"", False
    while not ended:
        events = client.exchange()
        assert events
        found += body_of(events)
        ended = bool(of(StreamEnded, events))
        for event in of(DataReceived, events):
            client.h2.acknowledge_received_data(event.flow_controlled_length, stream)
    assert found == message(body)
    assert server.reserve.held == 0
    assert not server.connection.streams


def test_streams_that_wait_take_turns(server: Server, client: Client) -> None:
    streams = [client.call() for _ in range(3)]
    for stream in streams:
        server.connection.sender.send(server.calls[stream].stream, [bytes(1 << 20)])
    client.exchange()
    for stream in streams:
        client.h2.increment_flow_control_window(1 << 22, stream)
    client.exchange()
    client.h2.increment_flow_control_window(1 << 20)
    events = client.exchange()
    order = [event.stream_id for event in of(DataReceived, events)]
    firsts = [order.index(stream) for stream in streams]
    assert max(firsts) < len(order) / 2, order


def test_a_client_may_make_all_windows_smaller_than_what_is_on_its_way(server: Server, client: Client) -> None:
    stream = client.call()
    server.connection.sender.send(server.calls[stream].stream, [bytes(100_000)])
    assert len(body_of(client.exchange())) == 65_535
    client.h2.increment_flow_control_window(1 << 20)
    client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10})
    client.exchange()
    assert server.calls[stream].stream.window == 10 - 65_535
    client.h2.increment_flow_control_window(65_535, stream)
    assert len(body_of(client.exchange())) == 10
    client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20})
    assert len(body_of(client.exchange())) == 100_005 - 65_535 - 10
    assert server.calls[stream].times_drained == 1


@pytest.mark.slow
def test_requests_larger_than_all_windows_come_through(server: Server, client: Client) -> None:
    body = random.Random(1).randbytes(40_000_000)
    stream = client.h2.get_next_available_stream_id()
    client.h2.send_headers(stream, HEADERS)
    sent = 0
    while sent < len(body):
        room = min(client.h2.local_flow_control_window(stream), client.h2.max_outbound_frame_size)
        assert room > 0
        client.h2.send_data(stream, body[sent : sent + room], end_stream=sent + room >= len(body))
        sent += room
        client.exchange()
        if stream in server.connection.streams:
            server.connection.credit(server.connection.streams[stream])
            client.exchange()
    assert server.calls[stream].body == body
    assert server.calls[stream].ended


def test_a_client_that_cancels_is_heard(server: Server, client: Client) -> None:
    stream = client.call(end=False)
    client.h2.reset_stream(stream, 8)
    client.exchange()
    assert server.calls[stream].is_lost
    server.connection.sender.reply(server.calls[stream].stream, b"too late")
    assert client.exchange() == []


def test_a_client_that_is_gone_loses_its_calls_and_what_they_held(server: Server, client: Client) -> None:
    streams = [client.call() for _ in range(3)]
    server.connection.sender.send(server.calls[streams[0]].stream, [bytes(1 << 20)])
    assert server.reserve.held
    server.connection.control.lost()
    assert all(server.calls[stream].is_lost for stream in streams)
    assert server.reserve.held == 0


def test_pings_are_answered_at_once(client: Client) -> None:
    client.h2.ping(b"01234567")
    assert [event.ping_data for event in of(PingAckReceived, client.exchange())] == [b"01234567"]


def test_trailers_end_a_request(server: Server, client: Client) -> None:
    stream = client.call(b"x", end=False)
    client.h2.send_headers(stream, [("a", "b")], end_stream=True)
    client.exchange()
    assert server.calls[stream].ended


def test_headers_may_come_in_many_frames(server: Server) -> None:
    server.greet()
    block = Encoder().encode([*HEADERS, ("x", "y" * 5000)])
    first = headers_frame(1, "END_STREAM")
    first.data = block[:10]
    pieces = [block[at : at + 1000] for at in range(10, len(block), 1000)]
    more = [ContinuationFrame(1, piece) for piece in pieces]
    more[-1].flags.add("END_HEADERS")
    server.receive(first, *more)
    assert server.calls[1].ended
    assert ("x", "y" * 5000) in server.calls[1].stream.head.metadata()


def test_of_more_streams_than_allowed_the_rest_is_refused(server: Server) -> None:
    server.greet()
    answers = server.receive(*(headers_frame(2 * n + 1) for n in range(MAX_STREAMS + 2)))
    assert [(frame.stream_id, frame.error_code) for frame in answers] == [(2049, 7), (2051, 7)]
    assert len(server.calls) == MAX_STREAMS


def test_a_client_is_asked_to_go_in_two_steps(server: Server) -> None:
    server.greet().receive(headers_frame(1, "END_HEADERS", "END_STREAM"))
    parted: list[bool] = []
    server.connection.control.on_parted = lambda: parted.append(True)
    server.connection.control.part()
    first, ping = server.receive()
    assert (first.last_stream_id, first.error_code) == (2**31 - 1, 0)
    # A call that the client made before it heard is served; its answer to our ping shows that it has heard.
    server.receive(headers_frame(3, "END_HEADERS", "END_STREAM"))
    (second,) = server.receive(PingFrame(0, ping.opaque_data, flags=("ACK",)))
    assert (second.last_stream_id, second.error_code) == (3, 0)
    assert parted == [True]
    for number in (1, 3):
        server.connection.sender.reply(server.calls[number].stream, b"served")
        assert [frame.stream_id for frame in server.receive()] == [number] * 3
    assert not server.connection.streams


def test_what_comes_after_the_last_call_is_refused_without_harm(server: Server) -> None:
    server.greet()
    server.receive(headers_frame(1))
    server.connection.control.part_now()
    assert [frame.last_stream_id for frame in server.receive()] == [1]
    assert [(frame.type, frame.error_code) for frame in server.receive(headers_frame(3))] == [(3, 7)]
    server.receive(data_frame(1, message(b""), "END_STREAM"))
    assert server.calls[1].ended


def test_the_last_stream_that_was_named_stays_the_last(server: Server) -> None:
    """RFC 9113, 6.8: a later GOAWAY names no higher one; the client may have sent that elsewhere again."""
    server.greet()
    encoder = Encoder()
    server.receive(headers_frame(1, encoder=encoder))
    server.connection.control.part_now()
    assert [frame.last_stream_id for frame in server.receive()] == [1]
    server.receive(headers_frame(3, encoder=encoder))
    (last,) = server.receive(data_frame(99, b"x"))
    assert (last.last_stream_id, last.error_code) == (1, 1)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_bytes_may_come_in_pieces_of_any_size(size: int) -> None:
    """What comes out does not depend on how the network cut what came in."""
    encoder = Encoder()
    stream = [PREFACE, SettingsFrame().serialize()]
    bodies = {2 * n + 1: random.Random(n).randbytes(n * 37) for n in range(20)}
    for number, body in bodies.items():
        stream.append(headers_frame(number, encoder=encoder).serialize())
        padded = data_frame(number, message(body)[: n_padding(number)], "PADDED")
        padded.pad_length = number % 11
        stream.append(padded.serialize())
        stream.append(data_frame(number, message(body)[n_padding(number) :], "END_STREAM").serialize())
    data = b"".join(stream)
    server = Server()
    for at in range(0, len(data), size):
        server.connection.receive(data[at : at + size])
    assert {number: call.body for number, call in server.calls.items()} == {
        number: message(body) for number, body in bodies.items()
    }
    assert all(call.ended for call in server.calls.values())


def n_padding(number: int) -> int:
    return number % 5


def _small_calls() -> list[Frame]:
    pairs = [(headers_frame(number), data_frame(number, message(b"x"), "END_STREAM")) for number in range(1, 1001, 2)]
    return [frame for pair in pairs for frame in pair]


_MUCH: dict[str, list[Frame]] = {
    "small calls": _small_calls(),
    "new headers": [headers_frame(n, fields=[*HEADERS, ("x", f"{n:04}" * 500)]) for n in range(1, 101, 2)],
    "frames that bring little": [headers_frame(1), *[data_frame(1, b"x")] * 4000],
}


@pytest.mark.parametrize("frames", _MUCH.values(), ids=_MUCH)
def test_one_connection_takes_a_share_of_a_turn(frames: list[Frame]) -> None:
    """T22. The rest is for later turns, and nobody's once the client has gone."""
    data = b"".join(frame.serialize() for frame in frames)
    server = Server(lazy=True).greet()
    server.connection.receive(data)
    turns, begun = 1, server.connection.control.last
    while server.connection.more:
        server.connection.receive(b"")
        turns += 1
    assert turns >= 4
    assert len(server.connection.streams) == len({frame.stream_id for frame in frames})
    gone = Server(lazy=True).greet()
    gone.connection.receive(data)
    gone.connection.control.lost()
    gone.connection.receive(b"")
    assert gone.connection.control.last == begun
    assert not gone.connection.more
    assert not gone.connection.unfinished


@pytest.mark.parametrize(("size", "unfinished", "ends"), [(1, True, True), (1, False, False), (300, True, False)])
def test_small_data_that_does_not_end_a_message_costs_like_empty_data(size: int, unfinished: bool, ends: bool) -> None:
    server = Server().greet()
    server.receive(headers_frame(1))
    server.calls[1].unfinished = unfinished
    for _ in range(5000):
        server.receive(data_frame(1, bytes(size)))
    assert server.connection.control.closed == ends
