"""A registry or a hub that is asked for a file answers with an address that its author could not reach himself."""

import http.client
import zlib
from collections.abc import Iterator

import pytest

from repoagent.errors import InvalidArgumentError
from repoagent.web import Hosts, WebClient, WebError
from tests.file_server import FileServer, Request


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("NO_PROXY", "*")
    with FileServer({"/a": b"content"}) as server:
        yield server


def to(server: FileServer, location: str) -> None:
    server.handlers[:] = [lambda request: request.answer(302, headers={"Location": location}) or True]  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    ("location", "text"),
    [
        ("http://169.254.169.254/latest/meta-data/iam/", "machine's own services"),
        ("http://[fd00:ec2::254]/latest/", "machine's own services"),
        ("http://[::ffff:169.254.169.254]/", "machine's own services"),
        ("http://2852039166/latest/meta-data/", "machine's own services"),  # 169.254.169.254 as one number
        ("http://0xa9fea9fe/", "machine's own services"),
        ("http://0/", "machine's own services"),
        ("http://localhost:1/admin", "not a public address"),
        ("http://127.1:1/", "not a public address"),
        ("//127.0.0.2:1/", "not a public address"),
        ("http://[::1]:1/", "not a public address"),
        ("http://10.0.0.1/", "not a public address"),
        ("file:///etc/passwd", "has the scheme 'file'"),
        ("ftp://127.0.0.1/x", "has the scheme 'ftp'"),
        ("gopher://127.0.0.1:6379/_SET", "has the scheme 'gopher'"),
        ("http://user:pw@127.0.0.1/", "user name or a password"),
        ("http://a\tb/", "a character that no URL can hold"),
    ],
)
def test_it_is_not_followed(server: FileServer, location: str, text: str) -> None:
    to(server, location)
    client = WebClient(Hosts([server.host]), timeout=60)
    with pytest.raises((InvalidArgumentError, WebError), match=text):
        client.fetch(f"{server.url}/a")
    assert len(server.requests) == 1


def test_another_port_of_the_same_machine_is_not_asked(server: FileServer) -> None:
    with FileServer({"/admin": b"inside"}) as inside:
        to(server, f"{inside.url}/admin")
        with pytest.raises(InvalidArgumentError, match="not a public address"):
            WebClient(Hosts([server.host]), timeout=60).fetch(f"{server.url}/a")
        assert inside.requests == []


def test_a_circle_ends(server: FileServer) -> None:
    to(server, "/a")
    with pytest.raises(WebError, match="redirects more than 5 times"):
        WebClient(Hosts([server.host]), timeout=60).fetch(f"{server.url}/a")
    assert len(server.requests) == 6


def test_https_does_not_become_http() -> None:
    from repoagent.web.client import _redirected

    with pytest.raises(InvalidArgumentError, match="which is not https"):
        _redirected("https://registry.example/x", "http://registry.example/x")


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "identity, gzip"])
def test_a_compressed_answer_is_not_decompressed(server: FileServer, encoding: str) -> None:
    bomb = zlib.compress(bytes(50_000_000))
    server.handlers.append(lambda request: request.answer(200, bomb, {"Content-Encoding": encoding}) or True)  # type: ignore[func-returns-value]
    with pytest.raises(WebError, match="nothing is decompressed"):
        WebClient(Hosts([server.host]), timeout=60).fetch(f"{server.url}/a")


def test_headers_without_end_are_given_up(server: FileServer) -> None:
    def flood(request: Request) -> bool:
        request.send_response(200)
        for number in range(1000):
            request.send_header(f"X-{number}", "x" * 100)
        request.end_headers()
        return True

    server.handlers.append(flood)
    with pytest.raises(WebError, match=http.client.HTTPException.__name__):
        WebClient(Hosts([server.host]), timeout=60).fetch(f"{server.url}/a")
