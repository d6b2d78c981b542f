"""What strangers send behind their headers: they are answered before it comes, and it takes neither memory nor time."""

import asyncio
import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest
import repoagent_server.http.connection
from repoagent_server.access import Scope
from repoagent_server.grpc.frontend import GrpcFrontend
from repoagent_server.handlers.headers import Api, Restriction
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.asgi import AsgiApp
from repoagent_server.http.frontend import Endpoint, HttpFrontend
from repoagent_server.http.reader import Limits
from repoagent_server.shared.grpc_options import GrpcOptions

from server_stub.tests.access.conftest import Guarded
from server_stub.tests.access.routes import CASES, Case
from server_stub.tests.grpc.http2.raw_client import Raw

_PATIENCE: Final = 60
_INFER: Final = "/v2/models/shared/infer"
_FRAMINGS: Final = {
    "long": "Content-Length: 60000000",
    "short": "Content-Length: 2",
    "chunked": "Transfer-Encoding: chunked",
    "long, asking": "Content-Length: 60000000\r\nExpect: 100-continue",
    "short, asking": "Content-Length: 2\r\nExpect: 100-continue",
    "chunked, asking": "Transfer-Encoding: chunked\r\nExpect: 100-continue",
}
_KEYS: Final = {"": 401, "x-api-key: wrong\r\n": 401, "x-api-key: eu-key\r\n": 403}
_SERVICE: Final = "/inference.GRPCInferenceService/"


_LIVE: Final = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nA: b\r\n\r\n"


def _head(framing: str, key: str = "", path: str = _INFER, method: str = "POST") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{key}{framing}\r\n\r\n".encode()


class _Client:
    """A connection, written to and read from by hand."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=_PATIENCE)
        self._file = self._socket.makefile("rb")
        self.headers: dict[str, str] = {}
        """Of the last answer."""

    def __enter__(self) -> "_Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_without_end(self, data: bytes) -> None:
        while True:
            self._socket.sendall(data)

    def status(self) -> int:
        """That of the next answer, which is read to its end. A sign to go on is one, too."""
        status = int(self._file.readline().split()[1])
        lines = iter(lambda: self._file.readline().decode().strip(), "")
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._file.read(int(self.headers.get("content-length", "0")))
        return status

    def rest(self) -> bytes:
        """What comes until the server ends the connection."""
        try:
            return self._file.read()
        except ConnectionError:
            return b""


def _connected(url: str) -> _Client:
    host, _, port = url.removeprefix("http://").partition(":")
    return _Client((host, int(port)))


@pytest.mark.parametrize("framing", _FRAMINGS)
@pytest.mark.parametrize("key", _KEYS, ids=_KEYS.values())
def test_a_request_that_is_not_let_in_is_answered_by_its_head_alone(guarded: Guarded, framing: str, key: str) -> None:
    with _connected(guarded.http) as client:
        client.send(_head(_FRAMINGS[framing], key))
        assert client.status() == _KEYS[key]
        assert client.headers.get("connection") == (None if framing == "short" else "close")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.method} {case.path('M')}")
def test_no_route_waits_for_the_body_of_a_stranger(guarded: Guarded, case: Case) -> None:
    if case.route.needs is None or case.route.needs.scope is Scope.OPEN:
        return
    with _connected(guarded.http) as client:
        client.send(_head("Content-Length: 60000000", path=case.path("shared"), method=case.method))
        assert client.status() == 401


@pytest.mark.parametrize(("path", "status"), [("/v2/nothing", 404), ("/v2/health/ready", 405)])
def test_what_no_client_may_send_is_refused_without_its_body(guarded: Guarded, path: str, status: int) -> None:
    for url in (guarded.http, guarded.metrics):
        with _connected(url) as client:
            client.send(_head("Content-Length: 60000000", path=path))
            assert client.status() == (status if url == guarded.http else 404)


def test_a_client_that_is_let_in_is_asked_for_its_body(guarded: Guarded) -> None:
    with _connected(guarded.http) as client:
        client.send(_head("Content-Length: 2\r\nExpect: 100-continue", "x-api-key: root-key\r\n"))
        assert client.status() == 100
        client.send(b"{}")
        assert client.status() == 500


def test_a_client_that_sends_all_before_it_reads_gets_its_answer(guarded: Guarded) -> None:
    host = guarded.http.removeprefix("http://")
    for length in (100_000, 20_000_000):
        connection = http.client.HTTPConnection(host, timeout=_PATIENCE)
        connection.request("POST", _INFER, bytes(length))
        assert connection.getresponse().status == 401
        connection.close()


def test_a_short_body_costs_no_connection_and_is_no_request(guarded: Guarded) -> None:
    hidden = _head("A: b", "x-api-key: root-key\r\n", "/v2", "GET")
    with _connected(guarded.http) as client:
        for cut in (0, 7, len(hidden) - 1, len(hidden)):
            client.send(_head(f"Content-Length: {len(hidden)}"))
            assert client.status() == 401
            client.send(hidden[:cut])
            client.send(hidden[cut:] + _LIVE)
            assert (client.status(), client.headers["content-length"]) == (200, "0")
        client.send(_LIVE.replace(b"A: b", b"Connection: close"))
        assert client.rest().count(b"HTTP/1.1") == 1


def test_answers_keep_their_order(guarded: Guarded) -> None:
    good = _head("A: b", "x-api-key: root-key\r\n", "/v2/repository/index")
    with _connected(guarded.http) as client:
        client.send(good.replace(b"A: b", b"Content-Length: 0") * 3 + _head("Content-Length: 60000000"))
        assert [client.status() for _ in range(4)] == [200, 200, 200, 401]


@pytest.mark.parametrize("framing", ["Content-Length: 20000000", "Content-Length: 20000000\r\nConnection: close"])
def test_a_body_behind_an_answer_that_takes_its_time_is_taken_too(guarded: Guarded, framing: str) -> None:
    """The client sends all before it reads, as it may: neither answer is lost."""
    good = _head("Content-Length: 0", "x-api-key: root-key\r\n", "/v2/repository/index")
    with _connected(guarded.http) as client:
        client.send(good + _head(framing))
        client.send(bytes(20_000_000))
        assert [client.status(), client.status()] == [200, 401]
        assert client.rest() == b""


def test_a_stranger_that_goes_on_sending_is_cut_off(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repoagent_server.http.connection, "_LINGER_SECONDS", 0.5)
    with _connected(guarded.http) as client:
        client.send(_head("Transfer-Encoding: chunked"))
        assert client.status() == 401
        with pytest.raises(ConnectionError):
            client.send_without_end(b"1\r\nx\r\n" * 10_000)


def test_a_stranger_that_stalls_in_a_short_body_is_cut_off(guarded: Guarded) -> None:
    service = api_service(Served(guarded.core, access=guarded.file.access))
    front = HttpFrontend(Endpoint(port=0, limits=Limits(stall_seconds=0.5)), service)
    front.start()
    try:
        with _Client(front.bind()) as client:
            client.send(_head("Content-Length: 2") + b"x")
            assert client.status() == 401
            assert client.rest() == b""
    finally:
        front.stop()


def test_a_refusal_is_reported_once_although_the_body_comes_later(guarded: Guarded) -> None:
    with _connected(guarded.http) as client:
        guarded.denied.clear()
        client.send(_head("Content-Length: 2"))
        assert client.status() == 401
        client.send(b"{}" + _LIVE)
        assert client.status() == 200
        assert len(guarded.denied) == 1


def test_a_request_whose_key_goes_while_its_body_comes_is_refused(guarded: Guarded) -> None:
    rules = guarded.file.access.rules
    with _connected(guarded.http) as client:
        client.send(_head("Content-Length: 2\r\nExpect: 100-continue", "x-api-key: root-key\r\n"))
        assert client.status() == 100
        try:
            guarded.file.access.replace(type(rules)())
            client.send(b"{}")
            assert client.status() == 401
        finally:
            guarded.file.access.replace(rules)


def test_an_application_reads_nothing_of_a_stranger(guarded: Guarded) -> None:
    messages: list[Any] = []

    async def receive() -> Any:
        messages.append("asked for a body")
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        messages.append(message)

    scope = {"type": "http", "method": "POST", "path": _INFER, "headers": [(b"content-length", b"60000000")]}
    with AsgiApp(api_service(Served(guarded.core, access=guarded.file.access))) as app:
        asyncio.run(app(scope, receive, send))
    assert messages[0]["status"] == 401


# gRPC


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer", "ModelMetadata", "RepositoryModelLoad"])
def test_a_call_of_a_stranger_ends_before_its_message(guarded: Guarded, method: str) -> None:
    host, _, port = guarded.grpc.partition(":")
    client = Raw((host, int(port)))
    with client.socket:
        for stream, key in enumerate(("wrong", "wrong", "eu-key"), 1):
            guarded.denied.clear()
            path = f"{_SERVICE}{method if key == 'wrong' else 'LogSettings'}"
            client.begin(2 * stream - 1, ("x-api-key", key), path=path)
            assert client.status()[0] == ("16" if key == "wrong" else "7")
            assert len(guarded.denied) == 1


def test_a_call_whose_key_has_gone_ends_with_its_first_bytes_and_the_next_one_before_them(guarded: Guarded) -> None:
    rules = guarded.file.access.rules
    host, _, port = guarded.grpc.partition(":")
    client = Raw((host, int(port)))
    key = ("x-api-key", "root-key")
    with client.socket:
        for stream in (1, 3, 5):  # from the second one on the head is known
            client.begin(stream, key)
            client.data(stream, b"\0\0\0\0\0", end=True)
            assert client.status()[0] == "5"
        try:
            guarded.file.access.replace(type(rules)())
            client.begin(7, key)
            client.data(7, b"\0\1\0\0\0")
            assert client.status()[0] == "16"
            client.begin(9, key)
            assert client.status()[0] == "16"
        finally:
            guarded.file.access.replace(rules)
        client.begin(11, key)
        client.data(11, b"\0\0\0\0\0", end=True)
        assert client.status()[0] == "5"


@pytest.fixture
def restricted(guarded: Guarded) -> Iterator[tuple[str, int]]:
    """A port whose inference needs a header."""
    restrictions = {Api.INFERENCE: Restriction("pass", b"word")}
    front = GrpcFrontend(Served(guarded.core), GrpcOptions(port=0), restrictions=restrictions)
    with ExitStack() as stack:
        stack.callback(front.stop)
        front.start()
        yield front.bind()


def test_a_call_without_the_header_of_a_restricted_part_ends_before_its_message(restricted: tuple[str, int]) -> None:
    client = Raw(restricted)
    with client.socket:
        client.begin(1)
        assert client.status()[0] == "14"


@pytest.mark.parametrize("messages", [0, 1])
def test_a_call_that_is_let_in_must_have_its_message(guarded: Guarded, messages: int) -> None:
    host, _, port = guarded.grpc.partition(":")
    client = Raw((host, int(port)))
    with client.socket:
        client.begin(1, ("x-api-key", "root-key"), path=f"{_SERVICE}ServerMetadata")
        client.data(1, b"\0\0\0\0\0" * messages, end=True)
        assert client.status()[0] == ("0" if messages else "12")
