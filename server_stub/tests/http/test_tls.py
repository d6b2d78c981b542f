"""HTTP over TLS: stock clients, large bodies, slow clients, certificates that change, and who the client is."""

import asyncio
import http.client
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from repoagent_server.access import PeerIdentity
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend
from repoagent_server.http.messages import Exchange, Request
from repoagent_server.http.reader import Limits
from repoagent_server.http.service import HttpService
from repoagent_server.shared.pools import Pools
from repoagent_server.tls.certificates import Certificates, TlsFiles

from tests.certificates import Authority, Pair

_ONE = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
_PLAIN_REQUEST = b"GET /v2/health/live HTTP/1.1\nHost: localhost\n\n"
Start = Callable[..., HttpFrontend]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("server")


@pytest.fixture
def peers() -> list[PeerIdentity | None]:
    """The client of each request, as the service is given it."""
    return []


@pytest.fixture
def start(core: Any, pair: Pair, authority: Authority, peers: list[PeerIdentity | None]) -> Iterator[Start]:
    """Start a front end with TLS; arguments are those of ``TlsFiles``, and ``limits`` of the front end."""
    started: list[HttpFrontend] = []

    def new(limits: Limits | None = None, reuse_port: bool = False, port: int = 0, **files: Any) -> HttpFrontend:
        wanted = {"certificate": pair.certificate, "key": pair.key, "alpn": ("http/1.1",), **files}
        tls = Certificates(TlsFiles("HTTP", **wanted))
        endpoint = Endpoint(port=port, limits=limits or Limits(), tls=tls, reuse_port=reuse_port)
        make = api_service(Served(core), max_input_size=1 << 28)

        def noting(loop: asyncio.AbstractEventLoop, pools: Pools) -> HttpService:
            service = make(loop, pools)
            handle = service.handle

            def note(request: Request, exchange: Exchange) -> None:
                peers.append(request.peer)
                handle(request, exchange)

            service.handle = note  # type: ignore[method-assign]
            return service

        front = HttpFrontend(endpoint, noting)
        started.append(front)
        front.start()
        return front

    yield new
    core.gate.set()
    for front in started:
        front.stop()


def _trusting(authority: Authority, client: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.root)
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    return context


def _client(front: HttpFrontend, authority: Authority, client: Pair | None = None) -> httpx.Client:
    return httpx.Client(
        base_url=f"https://localhost:{front.bind()[1]}", verify=_trusting(authority, client), timeout=120
    )


def _connected(front: HttpFrontend, authority: Authority, client: Pair | None = None) -> http.client.HTTPSConnection:
    context = _trusting(authority, client)
    connection = http.client.HTTPSConnection("localhost", front.bind()[1], context=context, timeout=120)
    connection.connect()
    return connection


def _serial(connection: http.client.HTTPSConnection) -> str:
    assert isinstance(connection.sock, ssl.SSLSocket)
    certificate = connection.sock.getpeercert()
    assert certificate is not None
    return str(certificate["serialNumber"])


def test_stock_clients_are_answered(start: Start, authority: Authority) -> None:
    front = start()
    with _client(front, authority) as client:
        for _ in range(3):
            assert client.get("/v2/health/ready").status_code == 200
        assert client.post("/v2/models/ident/infer", json=_ONE).json()["outputs"][0]["data"] == [1, 2]
    context = _trusting(authority)
    with triton.InferenceServerClient(
        f"localhost:{front.bind()[1]}", ssl=True, ssl_context_factory=lambda: context
    ) as client:
        tensor = triton.InferInput("INPUT0", [1, 3], "FP32")
        tensor.set_data_from_numpy(np.array([[1, 2, 3]], np.float32))
        result = client.infer("ident", [tensor])
        assert result.as_numpy("OUTPUT0").tolist() == [[1, 2, 3]]
    url = f"https://localhost:{front.bind()[1]}/v2/health/live"
    for version in ("--tlsv1.2", "--tlsv1.3"):
        command = [
            "curl",
            "-sS",
            "--cacert",
            authority.root,
            version,
            "-o",
            "-",
            "-w",
            "%{http_code} %{http_version}",
            url,
        ]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "200 1.1"


@pytest.mark.slow
def test_old_versions_and_weak_ciphers_are_refused_and_http_1_1_is_agreed_on(
    start: Start, authority: Authority
) -> None:
    address = f"localhost:{start().bind()[1]}"

    def shake(*more: str) -> str:
        command = ["openssl", "s_client", "-connect", address, "-CAfile", authority.root, "-brief", *more]
        run = subprocess.run(command, capture_output=True, text=True, input="", check=False)
        return run.stdout + run.stderr

    assert "Protocol version: TLSv1.3" in shake()
    assert "Protocol version: TLSv1.2" in shake("-tls1_2")
    for refused in (
        ("-tls1_1", "-cipher", "DEFAULT:@SECLEVEL=0"),
        ("-tls1_2", "-cipher", "AES128-SHA256:AES256-SHA:@SECLEVEL=0"),
        ("-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0"),
    ):
        assert "Protocol version" not in shake(*refused)
    full = subprocess.run(
        ["openssl", "s_client", "-connect", address, "-alpn", "h2,http/1.1"],
        capture_output=True, text=True, input="", check=False,
    )  # fmt: skip
    assert "ALPN protocol: http/1.1" in full.stdout


@pytest.mark.slow
def test_large_tensors_travel_both_ways_whole(start: Start, authority: Authority) -> None:
    front = start(limits=Limits(max_body=1 << 28))
    array = np.random.default_rng(7).random((1, 5_000_001), np.float32)
    context = _trusting(authority)
    with triton.InferenceServerClient(
        f"localhost:{front.bind()[1]}", ssl=True, ssl_context_factory=lambda: context, network_timeout=120
    ) as client:
        for _ in range(2):
            tensor = triton.InferInput("INPUT0", list(array.shape), "FP32")
            tensor.set_data_from_numpy(array)
            result = client.infer("ident", [tensor])
            assert np.array_equal(result.as_numpy("OUTPUT0"), array)


def test_requests_that_come_together_are_answered_in_order(start: Start, authority: Authority) -> None:
    front = start()
    connection = _connected(front, authority)
    assert isinstance(connection.sock, ssl.SSLSocket)
    connection.sock.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200)
    received = b""
    while received.count(b"HTTP/1.1 200 OK") < 200:
        piece = connection.sock.recv(1 << 16)
        assert piece
        received += piece
    connection.close()


def test_a_slow_client_gets_all_of_an_answer_after_which_the_connection_ends(
    start: Start, authority: Authority
) -> None:
    """The server closes at once; what it has written is more than any buffer on the way holds."""
    front = start(limits=Limits(max_body=1 << 28))
    array = np.ones((1, 4_000_000), np.float32)
    tensor = triton.InferInput("INPUT0", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    body, length = triton.InferenceServerClient.generate_request_body([tensor])
    connection = _connected(front, authority)
    headers = {"Inference-Header-Content-Length": str(length), "Connection": "close"}
    connection.request("POST", "/v2/models/ident/infer", body, headers)
    answer = connection.getresponse()
    size = 0
    while piece := answer.read(100_000):
        size += len(piece)
    assert answer.status == 200
    assert size > array.nbytes
    connection.close()


def test_a_client_that_reads_nothing_of_a_large_answer_is_ended(start: Start, authority: Authority) -> None:
    front = start(limits=Limits(max_body=1 << 28, stall_seconds=2))
    array = np.ones((1, 8_000_000), np.float32)
    tensor = triton.InferInput("INPUT0", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    body, length = triton.InferenceServerClient.generate_request_body([tensor])
    connection = _connected(front, authority)
    connection.request("POST", "/v2/models/ident/infer", body, {"Inference-Header-Content-Length": str(length)})
    running = front._running
    assert running is not None
    emptied = asyncio.run_coroutine_threadsafe(running.connections.empty(), running.loop)
    emptied.result(60)
    connection.close()


@pytest.mark.slow
def test_new_connections_get_a_new_certificate_and_open_ones_stay(
    start: Start, authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    shutil.copy(pair.certificate, certificate)
    shutil.copy(pair.key, key)
    front = start(certificate=str(certificate), key=str(key))
    kept = _connected(front, authority)
    former = _serial(kept)
    following = authority.issue("following")
    shutil.copy(following.certificate, certificate)
    shutil.copy(following.key, key)
    while True:
        connection = _connected(front, authority)
        serial = _serial(connection)
        connection.close()
        if serial != former:
            break
    kept.request("GET", "/v2/health/live")
    assert kept.getresponse().status == 200
    kept.close()


def test_the_client_of_a_request_is_its_certificates_subject(
    start: Start, authority: Authority, peers: list[PeerIdentity | None]
) -> None:
    names = ("URI:spiffe://example/ns/x", "DNS:client.example", "email:ops@example")
    front = start(root=authority.root, mutual=True)
    with _client(front, authority, authority.issue("somebody", names)) as client:
        assert client.get("/v2/health/live").status_code == 200
    with _client(front, authority, authority.issue("only-a-name", ())) as client:
        assert client.get("/v2/health/live").status_code == 200
    assert [peer.names[1:] if peer is not None else None for peer in peers] == [
        ("uri:spiffe://example/ns/x", "dns:client.example", "email:ops@example", "cn:somebody"),
        ("cn:only-a-name",),
    ]


def test_mutual_tls_admits_no_client_without_a_certificate_of_the_root(
    start: Start, authority: Authority, tmp_path: Path
) -> None:
    front = start(root=authority.root, mutual=True)
    stranger = Authority(tmp_path, "stranger").issue("somebody")
    for refused in (None, stranger):
        with _client(front, authority, refused) as client, pytest.raises(httpx.TransportError):
            client.get("/v2/health/live")


def test_a_root_alone_leaves_it_to_the_client_whether_it_has_a_certificate(
    start: Start, authority: Authority, peers: list[PeerIdentity | None], tmp_path: Path
) -> None:
    front = start(root=authority.root)
    with _client(front, authority) as client:
        assert client.get("/v2/health/live").status_code == 200
    with _client(front, authority, authority.issue("somebody", ())) as client:
        assert client.get("/v2/health/live").status_code == 200
    stranger = Authority(tmp_path, "stranger").issue("somebody")
    with _client(front, authority, stranger) as client, pytest.raises(httpx.TransportError):
        client.get("/v2/health/live")
    assert [peer.names[1:] if peer is not None else None for peer in peers] == [None, ("cn:somebody",)]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_does_not_outlive_the_root_of_its_clients(
    start: Start, authority: Authority, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    """A client whose root is gone cannot resume what it began while that was there."""
    former = Authority(tmp_path / "former")
    root = tmp_path / "root.pem"
    shutil.copy(former.root, root)
    front = start(root=str(root), mutual=True)
    context = _trusting(authority, former.issue("somebody"))
    context.minimum_version = context.maximum_version = version

    def asked(session: ssl.SSLSession | None) -> ssl.SSLSession | None:
        with (
            socket.create_connection(front.bind(), timeout=60) as raw,
            context.wrap_socket(raw, server_hostname="localhost", session=session) as client,
        ):
            client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
            return client.session

    session = asked(asked(None))
    shutil.copy(authority.root, root)

    def ask_until_refused() -> None:
        while True:
            asked(session)

    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask_until_refused()


def test_a_stopping_server_answers_what_runs_and_what_has_just_connected(
    core: Any, start: Start, authority: Authority
) -> None:
    front = start()
    with _client(front, authority) as running, _client(front, authority) as kept:
        assert kept.get("/v2/health/live").status_code == 200
        answers: list[int] = []
        thread = threading.Thread(
            target=lambda: answers.append(running.post("/v2/models/slow/infer", json=_ONE).status_code)
        )
        thread.start()
        assert core.submitted.wait(60)
        front.refuse()
        assert kept.post("/v2/models/ident/infer", json=_ONE).status_code == 503
        core.gate.set()
        assert front.drain(60)
        thread.join()
    assert answers == [200]


def test_a_connection_whose_handshake_is_under_way_at_the_end_is_answered(start: Start, authority: Authority) -> None:
    """Its client may have sent its request already; it is refused like others, but not without an answer."""
    front = start()
    with socket.create_connection(front.bind(), timeout=60) as raw:
        running = front._running
        assert running is not None
        while not len(running.connections):
            threading.Event().wait(0.01)
        stopping = threading.Thread(target=front.stop)
        front.refuse()
        stopping.start()
        with _trusting(authority).wrap_socket(raw, server_hostname="localhost") as client:
            client.sendall(b"POST /v2/models/ident/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 503")
        stopping.join()


def test_a_client_may_have_new_keys_in_the_middle(start: Start, authority: Authority) -> None:
    """openssl asks for them with a line ``K``: both sides go on with others."""
    address = f"localhost:{start().bind()[1]}"
    command = ["openssl", "s_client", "-connect", address, "-CAfile", authority.root, "-tls1_3", "-crlf"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        for _ in range(3):
            for line, answer in ((b"K\n", b"KEYUPDATE"), (_PLAIN_REQUEST, b"HTTP/1.1 200 OK")):
                client.stdin.write(line)
                client.stdin.flush()
                while answer not in (read := client.stdout.readline()):
                    assert read, "openssl has ended"
        client.stdin.close()
