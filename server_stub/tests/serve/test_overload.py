"""Thousands of connections, readers that do not read, and bytes that mean harm: the server stays up and small."""

import gzip
import http.client
import json
import os
import random
import resource
import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from repoagent_server.grpc import messages_pb2 as pb

from tests.processes import memory_of

if TYPE_CHECKING:
    from .conftest import Server, World

IDLE: Final = 4_000
IDLE_GRPC: Final = 1_000
READERS: Final = 500
GRPC_READERS: Final = 20
MIB: Final = 1 << 20

_FOUNTAIN: Final = '''\
"""Sends one text after another to everybody who asks until they go; counts those who went in a file."""

import threading
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.open, self.gone, self.stop, self.more = [], 0, False, threading.Event()
        self.text = np.array([b"x" * 32768], object)
        self.thread = threading.Thread(target=self.pour)
        self.thread.start()

    def execute(self, requests):
        self.open += [request.get_response_sender() for request in requests]
        self.more.set()

    def pour(self):
        while not self.stop:
            self.more.wait()
            self.more.clear()
            while self.open and not self.stop:
                for sender in list(self.open):
                    if sender.is_cancelled():
                        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                        self.open.remove(sender)
                        self.gone += 1
                        with open("GONE", "w") as file:
                            file.write(str(self.gone))
                    else:
                        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.text)]))

    def finalize(self):
        self.stop = True
        self.more.set()
        self.thread.join()
'''


@pytest.fixture(scope="module", autouse=True)
def many_files() -> Iterator[None]:
    """As many descriptors as the test needs, and the server that inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = IDLE + IDLE_GRPC + 2_000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"needs {wanted} file descriptors; the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def gone(world: "World") -> Path:
    """The file in which the fountain counts."""
    file = world.root / "gone"
    version = world.models / "fountain" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(_FOUNTAIN.replace('"GONE"', repr(str(file))))
    (version.parent / "config.pbtxt").write_text(
        'backend: "python" model_transaction_policy { decoupled: true }\n'
        'input { name: "IN" data_type: TYPE_STRING dims: [1] }\n'
        'output { name: "OUT" data_type: TYPE_STRING dims: [1] }\n'
    )
    return file


@pytest.fixture(scope="module")
def server(world: "World", gone: Path) -> "Server":
    flags = ["--load-model=plain", "--load-model=fountain", "--allow-grpc=true", "--grpc-port=0"]
    server = world.serve(*flags, "--http-max-input-size=4194304", "--grpc-max-message-size=4194304")
    assert server.answer("plain") == [1, -2, 3, -4]
    return server


@pytest.fixture(autouse=True)
def serves_others(server: "Server") -> Iterator[None]:
    """After each test a good client is served over both protocols, and no descriptor is left behind."""
    before = len(os.listdir(f"/proc/{server.process.pid}/fd"))
    yield
    _good(server)
    server.until(lambda: len(os.listdir(f"/proc/{server.process.pid}/fd")) <= before + 8, "the connections' end")


def _good(server: "Server") -> None:
    assert server.answer("plain") == [1, -2, 3, -4]
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.port('grpc')}") as client:
        tensor = triton_grpc.InferInput("X", [1, 4], "FP32").set_data_from_numpy(np.ones((1, 4), np.float32))
        assert client.infer("plain", [tensor], client_timeout=60).as_numpy("Y").tolist() == [[-1] * 4]


def _count(gone: Path) -> int:
    """How many streams the model has been told to end; the file is there after the first, and may just be written."""
    return int(gone.read_text() or "0") if gone.exists() else 0


@contextmanager
def _connections(port: int, count: int, first: bytes = b"", receive: int = 0) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        opened = []
        for _ in range(count):
            connection = stack.enter_context(socket.socket())
            connection.settimeout(60)
            if receive:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
            connection.connect(("127.0.0.1", port))
            if first:
                connection.sendall(first)
            opened.append(connection)
        yield opened


def _post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def _answer(server: "Server", request: bytes) -> tuple[int, bytes]:
    """Status and body of what the server says to these bytes."""
    with _connections(server.port("http"), 1) as (connection,):
        with suppress(ConnectionError):  # it may answer before it has read all
            connection.sendall(request)
        response = http.client.HTTPResponse(connection)
        response.begin()
        return response.status, response.read()


def test_idle_connections_cost_little_and_hold_up_nobody(server: "Server") -> None:
    before = memory_of("VmRSS", server.process.pid)
    live = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with _connections(server.port("http"), IDLE, live) as idle, _connections(server.port("grpc"), IDLE_GRPC):
        for connection in idle:
            assert connection.recv(64).startswith(b"HTTP/1.1 200 OK")
        _good(server)
        assert memory_of("VmRSS", server.process.pid) - before < 200 * MIB


def test_the_usual_limit_of_open_files_is_raised(world: "World") -> None:
    limited = ["sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh"]
    other = world.serve("--load-model=plain", before=limited)
    lines = Path(f"/proc/{other.process.pid}/limits").read_text().splitlines()
    soft, hard = next(line for line in lines if line.startswith("Max open files")).split()[3:5]
    assert int(soft) == min(int(hard), 1 << 16) > 256
    assert other.stop() == 0


def test_readers_that_do_not_read_are_given_up_and_their_requests_cancelled(server: "Server", gone: Path) -> None:
    before, count = memory_of("VmRSS", server.process.pid), _count(gone)
    request = _post("/v2/models/fountain/generate_stream", b'{"IN":"x"}')
    with _connections(server.port("http"), READERS, request, receive=4096) as readers:
        for reader in readers:
            assert reader.recv(15) == b"HTTP/1.1 200 OK"
        _good(server)
        server.until(lambda: _count(gone) == count + READERS, "the end of every stream")
        assert memory_of("VmRSS", server.process.pid) - before < 400 * MIB


def test_grpc_streams_that_are_not_read_are_given_up_and_their_requests_cancelled(server: "Server", gone: Path) -> None:
    before, count = memory_of("VmRSS", server.process.pid), _count(gone)
    request = pb.ModelInferRequest(model_name="fountain")
    request.inputs.add(name="IN", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"x")
    with grpc.insecure_channel(f"127.0.0.1:{server.port('grpc')}") as channel:
        call: Callable[..., Any] = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelStreamInferResponse.FromString,
        )
        streams = [call(iter([request]), timeout=120) for _ in range(GRPC_READERS)]
        for stream in streams:
            assert not next(stream).error_message
        _good(server)
        server.until(lambda: _count(gone) == count + GRPC_READERS, "the end of every stream")
        assert memory_of("VmRSS", server.process.pid) - before < 400 * MIB
        for stream in streams:
            stream.cancel()


def test_connections_that_break_off_anywhere_harm_nobody(server: "Server") -> None:
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    request = _post("/v2/models/plain/infer", json.dumps({"inputs": [tensor]}).encode())
    chance = random.Random(7)
    for _ in range(200):
        with _connections(server.port("http"), 1, request[: chance.randrange(1, len(request) + 1)]) as (connection,):
            if chance.random() < 0.5:
                connection.shutdown(socket.SHUT_WR)
                with suppress(ConnectionError):
                    while connection.recv(4096):
                        pass
            else:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("port", ["http", "grpc"])
def test_garbage_is_answered_or_dropped(server: "Server", port: str) -> None:
    chance = random.Random(11)
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(500)  # TLS where none is spoken
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    garbage = [chance.randbytes(chance.randrange(1, 70_000)) for _ in range(100)]
    garbage += [hello, preface, preface + chance.randbytes(9_000), b"\0" * 100_000, b"GET / HTTP/9.9\r\n\r\n"]
    for data in garbage:
        with _connections(server.port(port), 1) as (connection,), suppress(OSError):  # it may be closed already
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass


def test_endless_and_countless_headers_are_refused(server: "Server") -> None:
    line = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n"
    for bomb in (b"X: " + b"a" * 2 * MIB, b"".join(b"X-%d: y\r\n" % n for n in range(100_000)), b"/" * 2 * MIB):
        assert _answer(server, line + bomb)[0] in (400, 431)
    assert _answer(server, b"GET /" + b"v" * 2 * MIB + b" HTTP/1.1\r\n\r\n")[0] in (400, 414, 431)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_small_body_that_unpacks_to_a_large_one_is_refused(server: "Server", coding: str) -> None:
    before = memory_of("VmRSS", server.process.pid)
    zeros = bytes(128 * MIB)
    bomb = gzip.compress(zeros, 1) if coding == "gzip" else zlib.compress(zeros, 1)
    assert len(bomb) < 4 * MIB
    del zeros
    status, body = _answer(server, _post("/v2/models/plain/infer", bomb, f"Content-Encoding: {coding}"))
    assert (status, b"exceeds the maximum allowed input size" in body) == (400, True), body
    assert memory_of("VmRSS", server.process.pid) - before < 64 * MIB


@pytest.mark.parametrize("path", ["infer", "generate", "generate_stream"])
@pytest.mark.parametrize("text", ["[", '{"a":', '{"inputs":[{"data":' + "["])
def test_deep_json_is_refused(server: "Server", path: str, text: str) -> None:
    status, body = _answer(server, _post(f"/v2/models/plain/{path}", text.encode() * 100_000))
    assert (status, b"nesting depth exceeds" in body) == (400, True), body


def test_a_grpc_message_that_unpacks_to_a_large_one_is_refused(server: "Server") -> None:
    before = memory_of("VmRSS", server.process.pid)
    with grpc.insecure_channel(
        f"127.0.0.1:{server.port('grpc')}",
        options=[("grpc.max_send_message_length", -1)],
        compression=grpc.Compression.Gzip,
    ) as channel:
        call: Callable[..., Any] = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as refused:
            call(bytes(128 * MIB), timeout=60)
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert memory_of("VmRSS", server.process.pid) - before < 64 * MIB
