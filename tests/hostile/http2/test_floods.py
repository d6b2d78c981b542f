"""T22: clients that send what HTTP/2 allows more often than anyone has use for, or announce more than they send.

Memory stays bounded, other clients are served, and nothing of a client's bytes gets into the log.
"""

import contextlib
import logging
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
import pytest
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from repoagent_server.grpc.frontend import GrpcFrontend
from repoagent_server.handlers.inference import Served
from repoagent_server.shared.grpc_options import GrpcOptions
from tritonclient.grpc import service_pb2, service_pb2_grpc

from repoagent.limits import Limits
from repoagent.serving.core import ServingCore
from server_stub.tests.grpc.http2.raw_client import HEADERS, Raw
from tests.extent import in_full

pytestmark = pytest.mark.slow

GROWTH: Final = 64 << 20
CALM: Final = 11
MARK: Final = "HOSTILE-MARK"

Attack = Callable[[Raw], None]


@pytest.fixture(scope="module")
def port(core: ServingCore) -> Iterator[int]:
    options = GrpcOptions(port=0, max_message_bytes=1 << 26)
    front = GrpcFrontend(Served(core, limits=Limits(held_bytes=16 << 20)), options)
    front.start()
    yield front.bind()[1]
    front.stop()


def infer(values: int = 4, model: str = "numbers") -> Any:
    asked = service_pb2.ModelInferRequest(model_name=model)
    asked.inputs.add(name="INPUT0", datatype="FP32", shape=[values])
    asked.raw_input_contents.append(np.ones(values, np.float32).tobytes())
    return asked


def body(values: int = 4) -> bytes:
    data: bytes = infer(values).SerializeToString()
    return struct.pack(">BI", 0, len(data)) + data


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def until_ended(raw: Raw, data: bytes, times: int) -> None:
    """Send until the server has had enough; a client that is cut off is what these tests want."""
    try:
        for _ in range(times):
            raw.socket.sendall(data)
    except OSError:
        pass


def rapid_resets(raw: Raw) -> None:
    block = raw.encoder.encode(HEADERS)
    encoded = raw.encoder.encode(HEADERS)
    raw.send(HeadersFrame(1, block, flags=("END_HEADERS",)), RstStreamFrame(1, 8))
    for first in range(3, 40_000, 200):
        frames = [
            HeadersFrame(number, encoded, flags=("END_HEADERS",)).serialize() + RstStreamFrame(number, 8).serialize()
            for number in range(first, first + 200, 2)
        ]
        until_ended(raw, b"".join(frames), 1)


def resets_of_running_calls(raw: Raw) -> None:
    for first in range(1, 20_000, 100):
        pieces = []
        for number in range(first, first + 100, 2):
            pieces.append(HeadersFrame(number, raw.encoder.encode(HEADERS), flags=("END_HEADERS",)).serialize())
            pieces.append(DataFrame(number, body(), flags=("END_STREAM",)).serialize())
            pieces.append(RstStreamFrame(number, 8).serialize())
        until_ended(raw, b"".join(pieces), 1)


def faults(raw: Raw) -> None:
    """The client has the server reset the calls: trailers that end nothing."""
    for first in range(1, 20_000, 100):
        pieces = []
        for number in range(first, first + 100, 2):
            pieces.append(HeadersFrame(number, raw.encoder.encode(HEADERS), flags=("END_HEADERS",)).serialize())
            pieces.append(HeadersFrame(number, b"\0\1a\1b", flags=("END_HEADERS",)).serialize())
        until_ended(raw, b"".join(pieces), 1)


def continuations(raw: Raw) -> None:
    raw.send(HeadersFrame(1, raw.encoder.encode(HEADERS)))
    until_ended(raw, ContinuationFrame(1, b"\0\1a\1b" * 100).serialize() * 10, 1000)


def empty_continuations(raw: Raw) -> None:
    raw.send(HeadersFrame(1, raw.encoder.encode(HEADERS)))
    until_ended(raw, ContinuationFrame(1, b"").serialize() * 1000, 100)


def flood_of(frame: Any) -> Attack:
    def attack(raw: Raw) -> None:
        until_ended(raw, frame.serialize() * 1000, 500)

    return attack


def until_cut_off(attack: Attack) -> Attack:
    def attempt(raw: Raw) -> None:
        with contextlib.suppress(OSError):
            attack(raw)

    return attempt


def empty_data(raw: Raw) -> None:
    raw.begin(1)
    until_ended(raw, DataFrame(1).serialize() * 1000, 500)


def new_headers(raw: Raw) -> None:
    """Calls that differ in 8 KiB of headers, which no table holds, and never send their message."""
    raw.send(HeadersFrame(1, raw.encoder.encode(HEADERS), flags=("END_HEADERS",)))
    block, entry = raw.encoder.encode(HEADERS), b"\0\1x\x7f" + bytes((0x80 | (8000 - 127) & 127, (8000 - 127) >> 7))
    for number in range(3, 8001, 2):
        frame = HeadersFrame(number, block + entry + b"%08d" % number * 1000, flags=("END_HEADERS",))
        until_ended(raw, frame.serialize(), 1)


def bytes_in_frames_of_their_own(raw: Raw) -> None:
    """Each of a byte, for a message of 64 MiB."""
    raw.begin(1)
    raw.send(DataFrame(1, struct.pack(">BI", 0, 1 << 26)))
    until_ended(raw, DataFrame(1, b"x", pad_length=20, flags=("PADDED",)).serialize() * 1000, 10)
    until_ended(raw, DataFrame(1, b"x").serialize() * 1000, 100)


def bomb(raw: Raw) -> None:
    entry = b"\x40\x01a\x7f" + bytes((0x80 | (3000 - 127) & 127, (3000 - 127) >> 7)) + b"v" * 3000
    raw.send(HeadersFrame(1, Encoder().encode(HEADERS) + entry + b"\xbe" * 15_000, flags=("END_HEADERS",)))


def updates_of_the_table(raw: Raw) -> None:
    raw.send(HeadersFrame(1, b"\x20" * 16_000, flags=("END_HEADERS",)))


def a_length_of_16_mib(raw: Raw) -> None:
    until_ended(raw, b"\xff\xff\xff\0\0\0\0\0\1", 1)


ENDED: Final[dict[str, tuple[Attack, set[int]]]] = {
    "rapid resets": (rapid_resets, {CALM}),
    "resets by the server": (faults, {CALM}),
    "resets of running calls": (resets_of_running_calls, {CALM}),
    "CONTINUATION without end": (continuations, {CALM}),
    "empty CONTINUATION": (empty_continuations, {CALM}),
    "PING": (flood_of(PingFrame(0, b"12345678")), {CALM}),
    "SETTINGS": (flood_of(SettingsFrame(settings={4: 1})), {CALM}),
    "WINDOW_UPDATE": (flood_of(WindowUpdateFrame(0, 1)), {CALM}),
    "PRIORITY": (flood_of(PriorityFrame(1)), {CALM}),
    "empty DATA": (empty_data, {CALM}),
    "DATA of a byte": (bytes_in_frames_of_their_own, {CALM}),
    "new headers": (until_cut_off(new_headers), {CALM}),
    "HPACK bomb": (bomb, {9}),
    "updates of the table": (updates_of_the_table, {9}),
    "a frame of 16 MiB": (a_length_of_16_mib, {1, 6}),
}
"""Each with the codes that may end its connection; -1 is a connection that was reset while it still sent."""


@pytest.fixture
def others(port: int) -> Iterator[Callable[[], None]]:
    """Have another client served."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

        def ask() -> None:
            answer = stub.ModelInfer(infer(), timeout=60)
            assert answer.raw_output_contents[0] == np.ones(4, np.float32).tobytes()

        ask()
        yield ask


@pytest.mark.parametrize(("attack", "codes"), ENDED.values(), ids=ENDED)
def test_a_flood_ends_its_own_connection_only(
    attack: Attack, codes: set[int], port: int, others: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "repoagent")
    before = resident()
    for _ in range(in_full(3, otherwise=1)):
        raw = Raw(("127.0.0.1", port))
        attack(raw)
        others()
        assert raw.ended() in codes | {-1}
        raw.socket.close()
    assert resident() - before < GROWTH
    # Models' processes of the tests before may still be ending.
    own = [record for record in caplog.records if not record.name.startswith("repoagent.models")]
    assert [record for record in own if record.levelno >= logging.WARNING] == []


def test_windows_that_never_open_hold_what_is_allowed(port: int, others: Callable[[], None]) -> None:
    """A thousand calls whose answers cannot be sent: those that fit are held, the others are refused."""
    before = resident()
    with_no_window = Raw(("127.0.0.1", port), {4: 0})
    answers = 0
    for number in range(1, 1600, 2):
        with_no_window.begin(number)
        data = body(15_000)
        pieces = [data[at : at + 16_384] for at in range(0, len(data), 16_384)]
        with_no_window.send(*(DataFrame(number, piece) for piece in pieces))
        with_no_window.send(DataFrame(number, b"", flags=("END_STREAM",)))
    refused: list[str] = []
    while len(refused) < 400:
        status, text = with_no_window.status()
        assert (status, "--limit-held-bytes" in text) == ("8", True)
        refused.append(status)
    others()
    assert answers == 0
    assert resident() - before < GROWTH
    with_no_window.socket.close()
    others()


def test_calls_that_are_never_finished_are_as_many_as_allowed(port: int, others: Callable[[], None]) -> None:
    before = resident()
    opened = []
    for _ in range(10):
        raw = Raw(("127.0.0.1", port))
        opened.append(raw)
        for number in range(1, 2100, 2):
            raw.begin(number)
        raw.send(PingFrame(0, b"12345678"))
        refused = 0
        while not isinstance(frame := raw.frame(), PingFrame):
            refused += isinstance(frame, RstStreamFrame) and frame.error_code == 7
        assert refused == 1050 - 1024
        others()
    assert resident() - before < GROWTH
    for raw in opened:
        raw.socket.close()


def test_a_message_said_to_have_4_gib_is_refused_by_its_first_bytes(port: int, others: Callable[[], None]) -> None:
    raw = Raw(("127.0.0.1", port))
    raw.begin(1)
    raw.send(DataFrame(1, b"\0\xff\xff\xff\xff"))
    assert raw.status()[0] == "8"
    others()
    raw.socket.close()


def test_unfinished_messages_of_many_connections_hold_what_is_allowed(port: int, others: Callable[[], None]) -> None:
    before = resident()
    opened, refused = [], 0
    for _ in range(12):
        raw = Raw(("127.0.0.1", port))
        opened.append(raw)
        raw.begin(1)
        raw.send(DataFrame(1, struct.pack(">BI", 0, 1 << 25)))
        for _ in range(200):
            raw.send(DataFrame(1, bytes(16_384)))
        raw.send(PingFrame(0, b"12345678"))
        while not isinstance(frame := raw.frame(), PingFrame):
            refused += isinstance(frame, HeadersFrame)
        others()
    assert refused >= 6
    assert resident() - before < GROWTH
    for raw in opened:
        raw.socket.close()
    others()


def test_a_client_that_never_reads_is_not_answered_without_end(port: int, others: Callable[[], None]) -> None:
    """Its windows are as large as they get: only its socket is full."""
    before = resident()
    raw = Raw(("127.0.0.1", port), {4: 2**31 - 1})
    raw.send(WindowUpdateFrame(0, 2**31 - 65_536))
    raw.socket.settimeout(2)
    data = body(15_000)
    frames = [DataFrame(1, data[at : at + 16_384]) for at in range(0, len(data), 16_384)]
    number = 1
    try:
        for number in range(1, 4000, 2):
            raw.begin(number)
            for frame in frames:
                frame.stream_id = number
            raw.send(*frames, DataFrame(number, b"", flags=("END_STREAM",)))
    except OSError:
        pass  # the server reads no more either
    assert number < 3999
    others()
    assert resident() - before < GROWTH
    raw.socket.close()


def test_nothing_of_a_client_gets_into_the_log(
    port: int, others: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("hpack").setLevel(logging.INFO)
    raw = Raw(("127.0.0.1", port))
    raw.begin(1, path=f"/{MARK}/\x1b[31m", end=True)
    raw.begin(3, ("grpc-encoding", MARK), end=True)
    raw.begin(5, ("grpc-timeout", MARK), end=True)
    raw.begin(7, ("x-bin", MARK + "!"), end=True)
    raw.begin(9, ("x", f"a\r\n{MARK}"), end=True)
    raw.begin(11)
    raw.send(DataFrame(11, struct.pack(">BI", 0, len(MARK)) + MARK.encode(), flags=("END_STREAM",)))
    raw.send(PingFrame(0, b"12345678"))
    raw.next(PingFrame)
    raw.send(HeadersFrame(13, b"\x00\x7f\xff" + MARK.encode(), flags=("END_HEADERS",)))
    assert raw.ended() == 9
    raw.socket.close()
    early = Raw(("127.0.0.1", port))
    early.socket.sendall(MARK.encode() * 100)
    early.ended()
    early.socket.close()
    others()
    assert MARK not in caplog.text


def test_a_new_token_with_every_call_is_no_flood(port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for first in range(0, 2000, 200):
            tokens = [f"{number:08}" * 1900 for number in range(first, first + 200)]
            calls = [stub.ModelInfer.future(infer(), timeout=60, metadata=[("x-token", token)]) for token in tokens]
            assert all(call.result().outputs for call in calls)
