"""Clients that misuse TLS: they end, in bounded time and memory, and keep no other client waiting."""

import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import httpx
import pytest
import repoagent_server.tls.handshakes
import tritonclient.grpc
from repoagent_server.grpc.frontend import GrpcFrontend
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend
from repoagent_server.shared.grpc_options import GrpcOptions
from repoagent_server.tls.certificates import Certificates, TlsFiles

from repoagent.limits import Limits
from repoagent.serving.core import ServingCore
from tests.certificates import Authority, Pair
from tests.extent import in_full
from tests.hostile.front_ends.conftest import Ways

_HALF_OPEN: Final = in_full(1000, otherwise=300)
_HEAVY: Final = 400
Serve = Callable[..., tuple[int, int]]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("server")


@pytest.fixture
def serve(serve_fronts: Callable[..., tuple[HttpFrontend, GrpcFrontend]]) -> Serve:
    """Start HTTP and gRPC with TLS, with so many handshakes at a time; their ports."""

    def start(**options: Any) -> tuple[int, int]:
        http, grpc_front = serve_fronts(**options)
        return http.bind()[1], grpc_front.bind()[1]

    return start


@pytest.fixture
def serve_fronts(core: ServingCore, pair: Pair) -> Iterator[Callable[..., tuple[HttpFrontend, GrpcFrontend]]]:
    """The same; the front ends themselves."""
    with ExitStack() as stack:

        def start(handshakes: int = 1024, pair: Pair = pair) -> tuple[HttpFrontend, GrpcFrontend]:
            files = TlsFiles("HTTP", pair.certificate, pair.key, alpn=("http/1.1",))
            endpoint = Endpoint(port=0, tls=Certificates(files), tls_handshakes=handshakes)
            http = HttpFrontend(endpoint, api_service(Served(core)))
            options = GrpcOptions(port=0, use_ssl=True, server_cert=pair.certificate, server_key=pair.key)
            grpc_front = GrpcFrontend(Served(core, limits=Limits(tls_handshakes=handshakes)), options)
            for front in (http, grpc_front):
                stack.callback(front.stop)
                front.start()
            return http, grpc_front

        yield start


def _hello(authority: Authority) -> bytes:
    """The first bytes of a client."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=authority.root)
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@contextmanager
def _half_open(port: int, count: int, sent: bytes) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        clients = []
        for _ in range(count):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=120))
            clients.append(client)
            if sent:
                client.sendall(sent)
        yield clients


def _has_come_on(client: socket.socket) -> bool:
    """Whether the server has answered its first message."""
    client.setblocking(False)
    try:
        return bool(client.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def _ended(client: socket.socket) -> bool:
    """Wait until the server has ended the connection."""
    with contextlib.suppress(ConnectionError):
        while client.recv(1 << 16):
            pass
    return True


def _answers(ports: tuple[int, int], authority: Authority) -> None:
    """A client that means well is answered over both."""
    context = ssl.create_default_context(cafile=authority.root)
    with httpx.Client(base_url=f"https://localhost:{ports[0]}", verify=context, timeout=120) as client:
        assert client.get("/v2/health/ready").status_code == 200
    with tritonclient.grpc.InferenceServerClient(
        f"localhost:{ports[1]}", ssl=True, root_certificates=authority.root
    ) as client:
        assert client.is_server_live()


@pytest.mark.slow
@pytest.mark.parametrize("sent", ["nothing", "a byte", "all but a byte of the first message", "the first message"])
def test_many_handshakes_that_go_no_further_keep_nobody_waiting(serve: Serve, authority: Authority, sent: str) -> None:
    hello = _hello(authority)
    ports = serve()
    pieces = {"nothing": b"", "a byte": hello[:1], "the first message": hello}
    for port in ports:
        with _half_open(port, _HALF_OPEN, pieces.get(sent, hello[:-1])):
            for _ in range(3):
                _answers(ports, authority)
    _answers(ports, authority)


@pytest.fixture(scope="module")
def heavy(authority: Authority) -> Pair:
    """A key whose signatures take long."""
    return authority.issue("heavy", key="rsa:4096")


@pytest.mark.slow
def test_handshakes_that_must_be_computed_keep_no_open_connection_waiting(
    serve: Serve, authority: Authority, heavy: Pair
) -> None:
    """Each of them costs milliseconds. All have been asked for before the first request of the client that is there."""
    hello = _hello(authority)
    context = ssl.create_default_context(cafile=authority.root)
    ports = serve(pair=heavy)
    with (
        httpx.Client(base_url=f"https://localhost:{ports[0]}", verify=context, timeout=120) as web,
        tritonclient.grpc.InferenceServerClient(
            f"localhost:{ports[1]}", ssl=True, root_certificates=authority.root
        ) as remote,
    ):
        asks: list[Callable[[], object]] = [lambda: web.get("/v2/health/live"), remote.is_server_live]
        for port, ask in zip(ports, asks, strict=True):
            ask()
            with _half_open(port, _HEAVY, hello) as clients:
                for _ in range(10):
                    ask()
                assert not all(map(_has_come_on, clients)), "the client was answered after all handshakes"
            ask()


def test_while_handshakes_wait_for_their_turn_open_connections_are_answered(
    serve_fronts: Callable[[], tuple[HttpFrontend, GrpcFrontend]], authority: Authority
) -> None:
    """The threads for handshakes are taken: none is computed on the loop, which answers all others."""
    web_front, grpc_front = serve_fronts()
    port, hello = web_front.bind()[1], _hello(authority)
    context = ssl.create_default_context(cafile=authority.root)
    running = web_front._running
    assert running is not None
    pool, go_on, begun = running.pools.handshakes, threading.Event(), threading.Semaphore(0)

    def hold() -> None:
        begun.release()
        go_on.wait(120)

    with httpx.Client(base_url=f"https://localhost:{port}", verify=context, timeout=120) as web:
        assert web.get("/v2/health/live").status_code == 200
        for _ in range(pool._max_workers):
            pool.submit(hold)
            assert begun.acquire(timeout=120)
        try:
            with _half_open(port, 50, hello) as clients:
                for _ in range(20):
                    assert web.get("/v2/health/live").status_code == 200
                assert not any(map(_has_come_on, clients))
                go_on.set()
                while not all(map(_has_come_on, clients)):
                    assert web.get("/v2/health/live").status_code == 200
        finally:
            go_on.set()
    _answers((port, grpc_front.bind()[1]), authority)


def test_of_too_many_handshakes_the_oldest_end(serve: Serve, authority: Authority) -> None:
    ports = serve(handshakes=50)
    for port in ports:
        with _half_open(port, 200, b"\x16") as clients:
            assert all(_ended(client) for client in clients[:150])
            _answers(ports, authority)


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01"])
def test_a_handshake_that_takes_too_long_ends(
    serve: Serve, authority: Authority, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repoagent_server.tls.handshakes, "SECONDS", 0.5)
    ports = serve()
    for port in ports:
        with _half_open(port, 20, sent) as clients:
            assert all(_ended(client) for client in clients)
    monkeypatch.undo()
    _answers(serve(), authority)


def test_a_client_that_drips_its_handshake_ends_when_the_time_is_over(
    serve: Serve, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repoagent_server.tls.handshakes, "SECONDS", 0.5)
    hello = _hello(authority)
    for port in serve():
        with (
            socket.create_connection(("127.0.0.1", port), timeout=0.05) as client,
            contextlib.suppress(ConnectionError),
        ):
            for byte in hello[:-1]:
                client.sendall(bytes((byte,)))
                with contextlib.suppress(TimeoutError):
                    assert client.recv(1) == b""
                    break
            else:
                client.settimeout(60)
                assert _ended(client)


def test_plain_http_to_a_port_with_tls_is_told_so(serve: Serve, authority: Authority) -> None:
    ports = serve()
    answer = httpx.get(f"http://localhost:{ports[0]}/v2/health/live", timeout=60)
    assert (answer.status_code, answer.headers["connection"]) == (400, "close")
    assert answer.json() == {"error": "this port expects HTTPS; the request was sent without TLS"}
    with grpc.insecure_channel(f"localhost:{ports[1]}") as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=60)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    _answers(ports, authority)


def test_tls_to_ports_without_it_ends_and_harms_no_one(ways: Ways) -> None:
    for port in (ways.address[1], int(ways.grpc.rpartition(":")[2])):
        with (
            socket.create_connection(("127.0.0.1", port), timeout=60) as raw,
            pytest.raises((ssl.SSLError, ConnectionError)),
        ):
            ssl.create_default_context().wrap_socket(raw, server_hostname="localhost")
    assert ways.http.get("/v2/health/ready").status_code == 200


@pytest.mark.parametrize(
    "sent", [b"\x16" * 70_000, b"\x16\x03\x01\xff\xff" + bytes(70_000), b"\x16\x03\x01\x00\x05\x01\xff\xff\xff\xff"]
)
def test_bytes_that_are_no_handshake_end_the_connection(serve: Serve, authority: Authority, sent: bytes) -> None:
    ports = serve()
    for port in ports:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            with contextlib.suppress(ConnectionError):
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
            assert _ended(client)
    _answers(ports, authority)


def test_no_client_has_a_handshake_repeated(serve: Serve, authority: Authority) -> None:
    """Each would cost the server a signature, on a connection that it has counted as open."""
    command = ["openssl", "s_client", "-connect", f"localhost:{serve()[0]}", "-CAfile", authority.root, "-tls1_2"]
    run = subprocess.run(command, input="R\n", capture_output=True, text=True, timeout=60, check=False)
    assert "RENEGOTIATING" in run.stdout + run.stderr
    assert "no renegotiation" in run.stderr.lower()


def test_bytes_that_are_not_encrypted_end_an_open_connection(
    serve: Serve, authority: Authority, tmp_path: Path
) -> None:
    """Someone on the way puts bytes of his own into a connection."""
    context = ssl.create_default_context(cafile=authority.root)
    ports = serve()
    with socket.create_connection(("127.0.0.1", ports[0]), timeout=60) as raw:
        duplicate = raw.dup()
        with context.wrap_socket(raw, server_hostname="localhost") as client, duplicate:
            client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
            duplicate.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert _ended(duplicate)
    _answers(ports, authority)
