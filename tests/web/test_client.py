import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count

import pytest

from repoagent.errors import InvalidArgumentError
from repoagent.web import Hosts, WebClient, WebError
from tests.file_server import FileServer, Request


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer({"/a": b"content", "/a b%+é": b"odd"}) as server:
        yield server


@pytest.fixture
def client() -> WebClient:
    return WebClient(Hosts(["127.0.0.1"]), timeout=60)


def test_a_small_answer_comes_whole_and_its_connection_is_used_again(server: FileServer, client: WebClient) -> None:
    ports: set[int] = set()
    server.handlers.append(lambda request: ports.add(request.client_address[1]) or False)  # type: ignore[func-returns-value]
    for _ in range(3):
        answer = client.fetch(f"{server.url}/a")
        assert (answer.status, answer.body) == (200, b"content")
    assert len(ports) == 1
    assert client.fetch(f"{server.url}/none").status == 404
    assert client.fetch(f"{server.url}/a%20b%25+%C3%A9").body == b"odd"


def test_a_connection_that_the_server_closed_meanwhile_is_made_again(server: FileServer, client: WebClient) -> None:
    closed = threading.Event()

    def close(request: Request) -> bool:
        request.answer(200, b"last")
        request.break_off()
        closed.set()
        return True

    server.handlers.append(close)
    assert client.fetch(f"{server.url}/a").body == b"last"
    closed.wait()
    server.handlers.clear()
    assert client.fetch(f"{server.url}/a").body == b"content"


def test_redirects_are_followed_and_credentials_stay_with_their_origin(server: FileServer, client: WebClient) -> None:
    with FileServer({"/far": b"far"}) as other:

        def redirect(request: Request) -> bool:
            targets = {"/near": "/a", "/away": f"{other.url}/far?signature=secret"}
            if request.target in targets:
                request.answer(302, headers={"Location": targets[request.target]})
            return request.target in targets

        server.handlers.append(redirect)
        headers = {"Authorization": "Bearer secret", "Accept": "x/y", "X-Token": "secret"}
        assert client.fetch(f"{server.url}/near", headers=headers).body == b"content"
        assert server.seen_headers[-1]["Authorization"] == "Bearer secret"
        assert client.fetch(f"{server.url}/away", headers=headers).body == b"far"
        assert "secret" not in str(other.seen_headers)
        assert other.seen_headers[0]["Accept"] == "x/y"


def test_more_than_the_limit_is_not_read(server: FileServer, client: WebClient) -> None:
    server.files["/large"] = bytes(1 << 20)
    with pytest.raises(WebError, match="more than 1000 bytes"):
        client.fetch(f"{server.url}/large", limit=1000)


def test_a_truncated_answer_is_not_taken_for_whole(server: FileServer, client: WebClient) -> None:
    server.before_piece = lambda *_: False
    with pytest.raises(WebError, match="broke off after 0 of 7 bytes"):
        client.fetch(f"{server.url}/a")


def test_a_server_that_is_silent_or_absent_is_given_up(server: FileServer) -> None:
    quiet = threading.Event()
    server.handlers.append(lambda _request: quiet.wait() or True)
    try:
        with pytest.raises(WebError, match="does not answer: TimeoutError"):
            WebClient(Hosts(["127.0.0.1"]), timeout=0.2).fetch(f"{server.url}/a")
    finally:
        quiet.set()
    with FileServer() as gone:
        pass
    with pytest.raises(WebError, match="does not answer: ConnectionRefusedError"):
        WebClient(Hosts(["127.0.0.1"])).fetch(f"{gone.url}/a")


def test_a_small_answer_that_drips_is_given_up(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()

    def drip(request: Request) -> bool:
        request.send_response(200)
        request.end_headers()
        while not stop.wait(0.05):
            request.wfile.write(b"x")
        return True

    # The test's clock: on the machine's a server that stands still for a moment would be silent for too long.
    times = count(0, 30)
    monkeypatch.setattr("repoagent.web.client.monotonic", lambda: next(times))
    server.handlers.append(drip)
    try:
        with pytest.raises(WebError, match="takes too long"):
            WebClient(Hosts(["127.0.0.1"]), timeout=60).fetch(f"{server.url}/a")
    finally:
        stop.set()


def _header() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nX: "
    while True:
        yield b"x"


def _interim() -> Iterator[bytes]:
    while True:
        yield b"HTTP/1.1 100 Continue\r\n\r\n"


def _chunk_size() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    while True:
        yield b"0"


def _trailer() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    while True:
        yield b"x: y\r\n"


def _body() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
    while True:
        yield b"x"


def _read_all(client: WebClient, url: str) -> None:
    buffer = memoryview(bytearray(1 << 16))
    with client.get(url) as response:
        while response.readinto(buffer):
            pass


@pytest.mark.parametrize("parts", [_header, _interim, _chunk_size, _trailer, _body])
def test_an_answer_that_drips_wherever_it_may_is_given_up(
    parts: Callable[[], Iterator[bytes]], server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body may be large, so that only its next bytes have to come in time; of a whole file no one knows how long."""

    def drip(request: Request) -> bool:
        with suppress(OSError):
            for part in parts():
                request.wfile.write(part)
                time.sleep(0.001)
        request.close_connection = True
        return True

    times = count(0, 10)
    monkeypatch.setattr("repoagent.web.client.monotonic", lambda: next(times))
    server.handlers.append(drip)
    with pytest.raises(WebError, match="TimeoutError: its answer drips"):
        _read_all(WebClient(Hosts(["127.0.0.1"]), timeout=60), f"{server.url}/a")


def test_who_reads_may_stand_still(server: FileServer, client: WebClient, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("repoagent.web.client.monotonic", lambda: now[0])
    with client.get(f"{server.url}/a") as response:
        for byte in b"content":
            now[0] += 1000
            one = bytearray(1)
            assert response.readinto(memoryview(one)) == 1
            assert one[0] == byte


def test_a_proxy_of_the_environment_is_used(
    server: FileServer, client: WebClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("HTTP_PROXY", server.url)
    monkeypatch.setenv("http_proxy", server.url)
    server.handlers.append(lambda request: request.answer(200, request.path.encode()) or True)  # type: ignore[func-returns-value]
    assert client.fetch("http://models.example/a?b=c").body == b"http://models.example:80/a?b=c"


def test_a_header_cannot_hold_the_end_of_a_line(server: FileServer, client: WebClient) -> None:
    with pytest.raises(InvalidArgumentError, match="header Authorization"):
        client.fetch(f"{server.url}/a", headers={"Authorization": "x\r\nHost: y"})


def test_idle_connections_end_with_their_client(server: FileServer) -> None:
    WebClient(Hosts(["127.0.0.1"])).fetch(f"{server.url}/a")
    gc.collect()  # an open socket would be a warning, which is an error here
