"""The endpoint: what it is asked, and that everything but a clear yes is a refusal."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from repoagent_license.endpoint import ask

from repoagent.api import InvalidArgumentError, UnavailableError
from tests.file_server import FileServer


def answering(status: int, answer: object) -> Callable[[Any], tuple[int, bytes]]:
    return lambda _body: (status, answer if isinstance(answer, bytes) else json.dumps(answer).encode())


def test_a_yes_is_a_grant(endpoint: Any) -> None:
    grant = ask(endpoint.url, "m", timeout=60)
    assert grant.until is None
    assert endpoint.asked == [(None, {"model": "m"})]


def test_a_grant_can_have_an_end_and_the_request_a_token(endpoint: Any) -> None:
    endpoint.answer = answering(200, {"authorized": True, "until": "2027-01-31T00:00:00Z"})
    assert ask(endpoint.url, "m", token="t0ken", timeout=60).until == datetime(2027, 1, 31, tzinfo=UTC)
    assert endpoint.asked[0][0] == "Bearer t0ken"


@pytest.mark.parametrize(
    ("answer", "message"),
    [({"reason": "unpaid"}, "not authorized: unpaid"), ({}, "not authorized: the endpoint gave no reason")],
)
def test_a_no_is_a_refusal_with_its_reason(endpoint: Any, answer: dict[str, str], message: str) -> None:
    endpoint.answer = answering(200, {"authorized": False, **answer})
    with pytest.raises(InvalidArgumentError, match=message):
        ask(endpoint.url, "m", timeout=60)


def test_a_reason_is_not_longer_than_a_person_reads(endpoint: Any) -> None:
    endpoint.answer = answering(200, {"authorized": False, "reason": "x" * 60_000})
    with pytest.raises(InvalidArgumentError) as caught:
        ask(endpoint.url, "m", timeout=60)
    assert len(str(caught.value)) < 1100


@pytest.mark.parametrize("answer", [b"", b"yes", b"[" * 60_000, [], {}, {"authorized": "true"}, {"authorized": 1}])
def test_an_answer_that_makes_no_sense_is_a_refusal(endpoint: Any, answer: object) -> None:
    endpoint.answer = answering(200, answer)
    with pytest.raises(UnavailableError, match="cannot be used"):
        ask(endpoint.url, "m", timeout=60)


def test_an_end_that_is_no_time_is_a_refusal(endpoint: Any) -> None:
    endpoint.answer = answering(200, {"authorized": True, "until": "tomorrow"})
    with pytest.raises(InvalidArgumentError, match="'until' in the endpoint's answer is not a time"):
        ask(endpoint.url, "m", timeout=60)


@pytest.mark.parametrize("status", [201, 204, 301, 302, 307, 401, 403, 404, 500, 503])
def test_another_status_is_a_refusal_and_redirects_are_not_followed(endpoint: Any, status: int) -> None:
    endpoint.answer = answering(status, b"" if status == 204 else {"authorized": True})
    with pytest.raises(UnavailableError, match=f"the endpoint answered with status {status}"):
        ask(endpoint.url, "m", timeout=60)
    assert len(endpoint.asked) == 1


def test_a_closed_connection_is_a_refusal(endpoint: Any) -> None:
    endpoint.answer = lambda _body: None
    with pytest.raises(UnavailableError, match="the endpoint did not answer"):
        ask(endpoint.url, "m", timeout=60)


def test_a_port_where_nobody_listens_is_a_refusal() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(UnavailableError, match=r"did not answer: .*refused"):
            ask(f"http://127.0.0.1:{taken.getsockname()[1]}", "m", timeout=60)


def test_a_server_that_says_nothing_is_a_refusal_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(UnavailableError, match="timed out"):
        ask(f"http://127.0.0.1:{silent.getsockname()[1]}", "m", timeout=0.1)


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n", r"took too long|timed out"),
        (b"HTTP/1.1 200 OK\r\nX: ", "did not answer: timed out"),
    ],
    ids=["body", "header"],
)
def test_a_server_that_drips_is_a_refusal_after_the_timeout(start: bytes, text: str) -> None:
    """Each byte comes within the time limit, all of them never."""
    stop = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(start)
            while not stop.wait(0.01):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        try:
            with pytest.raises(UnavailableError, match=text):
                ask(f"http://127.0.0.1:{listener.getsockname()[1]}", "m", timeout=0.2)
        finally:
            stop.set()
            thread.join()


def test_a_huge_answer_is_a_refusal(endpoint: Any) -> None:
    endpoint.answer = answering(200, b" " * (1 << 17))
    with pytest.raises(UnavailableError, match="larger than 65536 bytes"):
        ask(endpoint.url, "m", timeout=60)


def test_a_proxy_does_not_see_what_is_asked_of_this_machine(endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request has the token, and http to this machine is allowed because it does not leave it."""
    with FileServer() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        assert ask(endpoint.url, "m", token="t0ken", timeout=60).until is None
        assert proxy.requests == []
