"""HTTP/2 on a real socket: what the tests of the methods do not see."""

import asyncio
import contextlib
import gzip
import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hyperframe.frame import (
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from repoagent_server.grpc.frontend import _STALL_SECONDS, GrpcFrontend
from repoagent_server.grpc.http2.frames import PREFACE
from repoagent_server.grpc.service import SERVICE
from repoagent_server.handlers.inference import Served
from repoagent_server.shared.grpc_options import GrpcOptions
from tritonclient.grpc import service_pb2, service_pb2_grpc

from repoagent.errors import UnavailableError
from repoagent.limits import Limits
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.tensor import Tensor

from .conftest import data_frame, headers_frame, message
from .held_time import HeldTime
from .raw_client import HEADERS, METHOD, Raw


def infer_message(model: str = "ident", values: int = 1, **fields: Any) -> service_pb2.ModelInferRequest:
    asked = service_pb2.ModelInferRequest(model_name=model, **fields)
    asked.inputs.add(name="INPUT0", datatype="FP32", shape=[1, values])
    asked.raw_input_contents.append(np.arange(values, dtype=np.float32).tobytes())
    return asked


@pytest.fixture
def connect(grpc_port: int) -> Iterator[Callable[[], Raw]]:
    opened: list[Raw] = []

    def connect() -> Raw:
        opened.append(Raw(("127.0.0.1", grpc_port)))
        return opened[-1]

    yield connect
    for raw in opened:
        raw.socket.close()


@pytest.fixture
def raw(connect: Callable[[], Raw]) -> Raw:
    return connect()


# What gRPC makes of it.


def test_what_is_no_grpc_has_a_status_of_http(raw: Raw) -> None:
    def ask(stream: int, **changed: str) -> str:
        fields = [(name, changed.get(name.lstrip(":").replace("-", "_"), value)) for name, value in HEADERS]
        raw.send(headers_frame(stream, "END_HEADERS", "END_STREAM", fields=fields, encoder=raw.encoder))
        return raw.fields()[":status"]

    assert ask(1, content_type="application/json") == "415"
    assert ask(3, method="GET") == "405"


def test_an_unknown_compression_is_named_with_those_that_are_known(raw: Raw) -> None:
    raw.begin(1, ("grpc-encoding", "snappy"), end=True)
    fields = raw.fields()
    assert fields["grpc-status"] == "12"
    assert fields["grpc-accept-encoding"] == "identity,deflate,gzip"
    assert "snappy" not in fields["grpc-message"]


@pytest.mark.parametrize("path", [METHOD, f"/{SERVICE}/ServerLive"])
def test_a_method_that_takes_one_message_wants_exactly_one(raw: Raw, path: str) -> None:
    raw.begin(1, path=path, end=True)
    assert raw.status() == ("12", "the method takes exactly one message")
    raw.begin(3, path=path)
    raw.send(data_frame(3, message(b"") * 2, "END_STREAM"))
    assert raw.status() == ("12", "the method takes exactly one message")


def test_faults_within_messages_end_their_call_only(raw: Raw) -> None:
    for stream, (data, status) in enumerate(
        [
            (message(b"abc")[:-1], ("13", "the request ends within a message")),
            (b"\0\0", ("13", "the request ends within a message")),
            (b"\2\0\0\0\0", ("13", "a message is neither compressed nor not")),
            (message(b"abc", 1), ("13", "a message is compressed, and its call names no compression")),
        ]
    ):
        raw.begin(2 * stream + 1)
        raw.send(data_frame(2 * stream + 1, data, "END_STREAM"))
        assert raw.status() == status
    raw.begin(101)
    raw.send(data_frame(101, message(infer_message().SerializeToString()), "END_STREAM"))
    assert raw.status()[0] == "0"


def test_a_bad_timeout_is_an_error(raw: Raw) -> None:
    raw.begin(1, ("grpc-timeout", "soon"), end=True)
    assert raw.status() == ("13", "grpc-timeout is not valid")


@pytest.mark.parametrize("how", ["gzip", "deflate"])
def test_compressed_requests(grpc_port: int, how: str) -> None:
    compression = grpc.Compression.Gzip if how == "gzip" else grpc.Compression.Deflate
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for values in (1, 500, 500_000):
            answer = stub.ModelInfer(infer_message(values=values), compression=compression)
            assert len(answer.raw_output_contents[0]) == 4 * values


@pytest.mark.parametrize("level", ["low", "medium", "high", 1, 3])
def test_compressed_answers(start_grpc: Any, level: str | int) -> None:
    raw = Raw(("127.0.0.1", start_grpc(infer_compression_level=level)))
    asked = message(infer_message(values=100_000).SerializeToString())
    for stream, accepts in ((1, "identity, gzip"), (3, "identity")):
        raw.send(WindowUpdateFrame(0, 1 << 20))
        raw.begin(stream, ("grpc-accept-encoding", accepts))
        raw.send(WindowUpdateFrame(stream, 1 << 20))
        raw.send(*[data_frame(stream, asked[at : at + 16384]) for at in range(0, len(asked), 16384)])
        raw.send(data_frame(stream, b"", "END_STREAM"))
        assert raw.fields().get("grpc-encoding") == ("gzip" if stream == 1 else None)
        body = b""
        while not isinstance(frame := raw.frame(), HeadersFrame):
            if isinstance(frame, DataFrame):
                body += frame.data
        raw.decoder.decode(frame.data)
        assert body[0] == (stream == 1)
        plain = gzip.decompress(body[5:]) if stream == 1 else body[5:]
        answer = service_pb2.ModelInferResponse.FromString(plain)
        assert len(answer.raw_output_contents[0]) == 400_000
    raw.socket.close()


@pytest.mark.parametrize("values", [3000, 300_000])
def test_messages_that_are_too_large_either_way(start_grpc: Any, core: Any, values: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{start_grpc(max_message_bytes=10_000)}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for compression in (None, grpc.Compression.Gzip):
            with pytest.raises(grpc.RpcError, match=r"SERVER: Received message .*larger than max") as raised:
                stub.ModelInfer(infer_message(values=values), compression=compression)
            assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert stub.ModelInfer(infer_message(values=2400))
        outputs = {"OUTPUT0": Tensor.of(np.zeros((1, values), np.float32))}
        core.responses = [(InferResponse("ident", "1", outputs=outputs), True)]
        with pytest.raises(grpc.RpcError, match="SERVER: Sent message larger than max") as raised:
            stub.ModelInfer(infer_message())
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_deadline_ends_a_call_and_cancels_its_request(raw: Raw, core: Any) -> None:
    raw.begin(1, ("grpc-timeout", "50m"))
    raw.send(data_frame(1, message(infer_message("slow").SerializeToString()), "END_STREAM"))
    assert core.submitted.wait(60)
    assert raw.status() == ("4", "Deadline Exceeded")
    assert core.requests[-1].cancelled


def test_a_deadline_ends_a_call_whose_request_never_comes(raw: Raw) -> None:
    for stream, path in ((1, METHOD), (3, f"/{SERVICE}/ServerLive"), (5, f"/{SERVICE}/ModelStreamInfer")):
        raw.begin(stream, ("grpc-timeout", "10m"), path=path)
        assert raw.status() == ("4", "Deadline Exceeded")


def test_a_cancelled_call_cancels_its_request(raw: Raw, core: Any) -> None:
    raw.begin(1)
    raw.send(data_frame(1, message(infer_message("slow").SerializeToString()), "END_STREAM"))
    assert core.submitted.wait(60)
    raw.send(RstStreamFrame(1, 8), PingFrame(0, b"12345678"))
    raw.next(PingFrame)
    assert core.requests[-1].cancelled


def test_a_call_that_comes_in_pieces_is_one(raw: Raw) -> None:
    """END_STREAM by itself, a prefix that is cut, padding: what clients in Go and JavaScript send."""
    body = message(infer_message(values=3).SerializeToString())
    for stream, cuts in ((1, [len(body)]), (3, [2]), (5, [5]), (7, [0, 7, 7, 9])):
        raw.begin(stream)
        for begin, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
            raw.send(data_frame(stream, body[begin:end]))
        raw.send(data_frame(stream, b"", "END_STREAM"))
        assert raw.status()[0] == "0"


def test_health_is_watched_until_the_end(core: Any) -> None:
    frontend = GrpcFrontend(Served(core), GrpcOptions(port=0))
    frontend.start()
    with grpc.insecure_channel("{}:{}".format(*frontend.bind())) as channel:
        watched = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
        stopping = threading.Thread(target=frontend.drain, args=(5,))
        stopping.start()
        assert next(watched).status == health_pb2.HealthCheckResponse.NOT_SERVING
        stopping.join(60)
        with pytest.raises(grpc.RpcError):
            next(watched)


# Connections.


def test_pings_of_an_impatient_client_end_its_connection(start_grpc: Any) -> None:
    raw = Raw(("127.0.0.1", start_grpc(http2_min_recv_ping_interval_without_data_ms=60_000, http2_max_ping_strikes=1)))
    with closing(raw.socket):
        raw.send(*[PingFrame(0, bytes(8))] * 3)
        goaway = raw.next(GoAwayFrame)
        assert (goaway.error_code, goaway.additional_data) == (11, b"too_many_pings")
        assert raw.frame() is None


@pytest.fixture
def held_time(monkeypatch: pytest.MonkeyPatch) -> HeldTime:
    """Ask for it before a front end starts."""
    return HeldTime(monkeypatch)


def _handled(raw: Raw) -> None:
    """Return once the server has handled what ``raw`` has sent so far. No PING comes from the server meanwhile."""
    raw.send(PingFrame(0, b"handled?"))
    assert (answer := raw.next(PingFrame)).flags == {"ACK"}
    assert answer.opaque_data == b"handled?"


def _answer_ping(raw: Raw) -> None:
    ping = raw.next(PingFrame)
    assert not ping.flags
    raw.send(PingFrame(0, ping.opaque_data, flags=("ACK",)))


def test_a_silent_client_is_pinged_and_one_that_does_not_answer_is_gone(
    held_time: HeldTime, start_grpc: Any, core: Any
) -> None:
    port = start_grpc(keepalive_time_ms=5_000, keepalive_timeout_ms=10_000, keepalive_permit_without_calls=True)
    alive, dead = Raw(("127.0.0.1", port)), Raw(("127.0.0.1", port))
    with closing(alive.socket), closing(dead.socket):
        for raw in (alive, dead):
            _handled(raw)
        held_time.pass_(5.1)
        _answer_ping(alive)
        _handled(alive)
        held_time.pass_(9.8)
        assert not dead.next(PingFrame).flags
        dead.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            dead.frame()  # it has a little time left
        dead.socket.settimeout(60)
        held_time.pass_(0.2)
        assert dead.ended() == -1
        alive.begin(1)
        alive.send(data_frame(1, message(infer_message().SerializeToString()), "END_STREAM"))
        assert alive.status()[0] == "0"


def test_pings_without_data_in_between_are_few(held_time: HeldTime, start_grpc: Any) -> None:
    port = start_grpc(
        keepalive_time_ms=20,
        keepalive_timeout_ms=60_000,
        keepalive_permit_without_calls=True,
        http2_max_pings_without_data=2,
        http2_max_ping_strikes=0,
    )
    raw = Raw(("127.0.0.1", port))
    with closing(raw.socket):
        _handled(raw)
        for _ in range(2):
            held_time.pass_(0.021)
            _answer_ping(raw)
            _handled(raw)
        for _ in range(5):
            held_time.pass_(0.021)
            _handled(raw)


def test_an_old_connection_ends_after_its_calls(held_time: HeldTime, start_grpc: Any, core: Any) -> None:
    raw = Raw(("127.0.0.1", start_grpc(max_connection_age_ms=10_000)))
    with closing(raw.socket):
        raw.begin(1)
        raw.send(data_frame(1, message(infer_message("slow").SerializeToString()), "END_STREAM"))
        assert core.submitted.wait(60)
        held_time.pass_(12)
        assert raw.next(GoAwayFrame).last_stream_id == 2**31 - 1
        raw.send(PingFrame(0, raw.next(PingFrame).opaque_data, flags=("ACK",)))
        assert raw.next(GoAwayFrame).last_stream_id == 1
        core.gate.set()
        assert raw.status()[0] == "0"
        assert raw.frame() is None


def test_an_old_connection_ends_after_its_grace_whatever_runs(held_time: HeldTime, start_grpc: Any, core: Any) -> None:
    raw = Raw(("127.0.0.1", start_grpc(max_connection_age_ms=10_000, max_connection_age_grace_ms=10_000)))
    with closing(raw.socket):
        raw.begin(1)
        raw.send(data_frame(1, message(infer_message("slow").SerializeToString()), "END_STREAM"))
        assert core.submitted.wait(60)
        held_time.pass_(12)
        raw.send(PingFrame(0, raw.next(PingFrame).opaque_data, flags=("ACK",)))
        assert raw.next(GoAwayFrame).last_stream_id == 1
        assert not core.requests[-1].cancelled
        held_time.pass_(10)
        assert raw.frame() is None
        assert core.requests[-1].cancelled


@pytest.mark.slow
def test_clients_do_not_notice_that_connections_grow_old(start_grpc: Any) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{start_grpc(max_connection_age_ms=20)}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            assert stub.ModelInfer(infer_message(), wait_for_ready=True)


def test_a_client_of_http_1_hears_that_this_is_another_protocol(grpc_port: int) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", grpc_port, timeout=60)) as connection:
        connection.request("GET", "/")
        with pytest.raises(http.client.HTTPException):
            connection.getresponse()


def test_a_unix_socket(core: Any, tmp_path: Path) -> None:
    path = tmp_path / "grpc.sock"
    left_behind = socket.socket(socket.AF_UNIX)
    left_behind.bind(str(path))
    left_behind.close()
    frontend = GrpcFrontend(Served(core), GrpcOptions(address=f"unix:{path}"))
    frontend.start()
    with grpc.insecure_channel(f"unix:{path}") as channel:
        assert service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(infer_message())
    with pytest.raises(UnavailableError, match=f"cannot listen on unix:{path}"):
        GrpcFrontend(Served(core), GrpcOptions(address=f"unix:{path}")).start()
    frontend.stop()
    assert not path.exists()


def test_a_file_in_the_place_of_a_socket_stays(core: Any, tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("text")
    with pytest.raises(UnavailableError, match="cannot listen on unix:"):
        GrpcFrontend(Served(core), GrpcOptions(address=f"unix:{path}")).bind()
    assert path.read_text() == "text"


def test_an_abstract_unix_socket(core: Any) -> None:
    name = f"unix-abstract:repoagent-{time.time_ns()}"
    frontend = GrpcFrontend(Served(core), GrpcOptions(address=name))
    frontend.start()
    with grpc.insecure_channel(name) as channel:
        assert service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(infer_message())
    frontend.stop()


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
@pytest.mark.parametrize("address", ["::1", "[::1]"])
def test_ipv6(core: Any, address: str) -> None:
    frontend = GrpcFrontend(Served(core), GrpcOptions(address=address, port=0))
    frontend.start()
    with grpc.insecure_channel(f"[::1]:{frontend.bind()[1]}") as channel:
        assert service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(infer_message())
    frontend.stop()


def test_two_servers_share_a_port_if_both_want_to(core: Any) -> None:
    first = GrpcFrontend(Served(core), GrpcOptions(port=0, reuse_port=True))
    first.start()
    port = first.bind()[1]
    with pytest.raises(UnavailableError):
        GrpcFrontend(Served(core), GrpcOptions(port=port)).start()
    second = GrpcFrontend(Served(core), GrpcOptions(port=port, reuse_port=True))
    second.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ModelInfer(infer_message())
        first.drain(5)
        for _ in range(20):
            assert stub.ModelInfer(infer_message())
    second.stop()


@pytest.mark.slow
def test_no_call_is_lost_when_a_server_that_shares_its_port_goes(core: Any) -> None:
    """Clients that call all the time, on connections to a server that another one follows."""
    options: dict[str, Any] = {"reuse_port": True}
    server = GrpcFrontend(Served(core), GrpcOptions(port=0, **options))
    server.start()
    port = server.bind()[1]
    stop = threading.Event()
    counts: list[int] = []
    faults: list[Any] = []

    def ask() -> None:
        count = 0
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            while not stop.is_set():
                try:
                    stub.ModelInfer(infer_message())
                    count += 1
                except grpc.RpcError as error:
                    faults.append(error)
        counts.append(count)

    clients = [threading.Thread(target=ask) for _ in range(4)]
    for client in clients:
        client.start()
    for _ in range(5):
        following = GrpcFrontend(Served(core), GrpcOptions(port=port, **options))
        following.start()
        server.refuse()
        server.drain(5)
        server.stop()
        server = following
    stop.set()
    for client in clients:
        client.join(60)
    server.stop()
    assert faults == []
    assert min(counts) > 0


@pytest.mark.slow
def test_a_thousand_streams_on_one_connection(grpc_port: int, core: Any) -> None:
    async def ask() -> list[Any]:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            calls = [stub.ModelInfer(infer_message("slow", values=number % 7 + 1)) for number in range(1000)]
            while len(core.requests) < 1000:
                await asyncio.sleep(0.01)
            core.gate.set()
            return await asyncio.gather(*calls)

    answers = asyncio.run(ask())
    assert [len(answer.raw_output_contents[0]) for answer in answers] == [
        4 * (number % 7 + 1) for number in range(1000)
    ]


def test_requests_that_wait_in_a_reserve_are_refused_and_given_back(core: Any) -> None:
    frontend = GrpcFrontend(Served(core, limits=Limits(held_bytes=1 << 20)), GrpcOptions(port=0))
    frontend.start()
    raw = Raw(frontend.bind())
    with closing(raw.socket):
        piece = struct.pack(">BI", 0, 1 << 22) + bytes(300_000)
        statuses = []
        for stream in range(1, 13, 2):
            raw.begin(stream)
            raw.send(*[data_frame(stream, piece[at : at + 16384]) for at in range(0, len(piece), 16384)])
            raw.send(PingFrame(0, b"12345678"))
            while not isinstance(frame := raw.frame(), PingFrame):
                if isinstance(frame, HeadersFrame):
                    statuses.append(raw.decoded(frame)["grpc-status"])
        assert statuses == ["8"] * 3
        for stream in range(1, 7, 2):
            raw.send(RstStreamFrame(stream, 8))
        raw.begin(21)
        raw.send(data_frame(21, message(infer_message().SerializeToString()), "END_STREAM"))
        assert raw.status()[0] == "0"
    frontend.stop()


@pytest.mark.parametrize("begun", ["nothing", "preface", "headers", "message", "unread"])
def test_a_client_that_stalls_in_the_middle_of_something_is_given_up(
    held_time: HeldTime, start_grpc: Any, core: Any, begun: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    submit = core.submit

    def submit_and_note(request: InferRequest) -> None:
        submit(request)
        answered.set()

    monkeypatch.setattr(core, "submit", submit_and_note)
    port = start_grpc()
    idle, watching = Raw(("127.0.0.1", port)), Raw(("127.0.0.1", port))
    idle.begin(1, end=True)  # its first call; without one it would be asked to come again with it
    watching.begin(1, path=f"/{SERVICE}/ModelStreamInfer")
    stalled = socket.create_connection(("127.0.0.1", port), timeout=60)
    with closing(stalled), closing(idle.socket), closing(watching.socket):
        greeting = PREFACE + SettingsFrame(settings={4: 0}).serialize()
        call = greeting + headers_frame(1).serialize()
        asked = data_frame(1, message(infer_message().SerializeToString()), "END_STREAM").serialize()
        pieces = {
            "nothing": b"",
            "preface": PREFACE[:5],
            "headers": call[:-20],
            "message": call + asked[:-3],
            "unread": call + asked,
        }
        stalled.sendall(pieces[begun])
        assert stalled.recv(1)  # the server's SETTINGS
        assert begun != "unread" or answered.wait(60)
        for raw in (idle, watching):
            _handled(raw)  # and so is what came before from another client
        held_time.pass_(2 * _STALL_SECONDS)
        with contextlib.suppress(ConnectionError):
            while stalled.recv(1 << 16):
                pass
        # Those that have finished what they began may wait: for a new call, or within a stream.
        for raw in (idle, watching):
            raw.send(PingFrame(0, b"12345678"))
            assert raw.next(PingFrame).opaque_data == b"12345678"


@pytest.mark.parametrize("path", [METHOD, f"/{SERVICE}/ModelStreamInfer"])
def test_calls_that_run_when_the_server_closes_end_with_a_status(core: Any, path: str) -> None:
    """Not with REFUSED_STREAM, after which a client would try again what has been executed."""
    frontend = GrpcFrontend(Served(core), GrpcOptions(port=0))
    frontend.start()
    raw = Raw(frontend.bind())
    with closing(raw.socket):
        raw.begin(1, path=path)
        raw.send(data_frame(1, message(infer_message("slow").SerializeToString())))
        if path == METHOD:
            raw.send(data_frame(1, b"", "END_STREAM"))
        assert core.submitted.wait(60)
        frontend.stop()
        assert raw.status() == ("14", "the server has stopped")
        assert raw.frame() is None or raw.ended() in (0, -1)
    assert core.requests[-1].cancelled
