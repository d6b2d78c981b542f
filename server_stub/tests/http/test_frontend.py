"""A front end's life: bind, start, refuse, drain, stop."""

import contextlib
import errno
import http.client
import socket
import threading
from typing import Any

import numpy as np
import pytest
import repoagent_server.http.frontend
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend

from repoagent.errors import UnavailableError
from repoagent.serving.requests.tensor import Tensor

_BODY = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"data":[1,2]}]}'


def _status(connection: http.client.HTTPConnection, method: str, path: str, body: bytes = b"") -> int:
    connection.request(method, path, body)
    response = connection.getresponse()
    response.read()
    return response.status


def test_a_port_that_is_taken_is_reported_before_anything_is_served(core: Any, frontend: HttpFrontend) -> None:
    _, port = frontend.bind()
    second = HttpFrontend(Endpoint(port=port), api_service(Served(core)))
    with pytest.raises(UnavailableError, match=rf"Socket '127.0.0.1:{port}' already in use"):
        second.bind()


def test_an_address_of_another_machine_is_not_called_in_use(core: Any) -> None:
    with pytest.raises(
        UnavailableError, match=r"'192\.0\.2\.1:8000' not available: no network interface of this machine"
    ):
        HttpFrontend(Endpoint("192.0.2.1", 8000), api_service(Served(core))).bind()


def test_a_port_that_needs_rights_is_not_called_in_use(core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("socket.socket.bind", refuse)
    # U11: it said that the port is in use.
    with pytest.raises(UnavailableError, match="may not listen on port 80; choose a port from 1024 on"):
        HttpFrontend(Endpoint(port=80), api_service(Served(core))).bind()


def test_two_servers_can_share_a_port_if_both_agree(core: Any) -> None:
    first = HttpFrontend(Endpoint(port=0, reuse_port=True), api_service(Served(core)))
    _, port = first.bind()
    second = HttpFrontend(Endpoint(port=port, reuse_port=True), api_service(Served(core)))
    assert second.bind() == ("127.0.0.1", port)
    first.stop()
    second.stop()


def test_a_bound_front_end_does_not_accept_before_it_starts(core: Any) -> None:
    front = HttpFrontend(Endpoint(port=0), api_service(Served(core)))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(front.bind(), timeout=60)
    front.start()
    socket.create_connection(front.bind(), timeout=60).close()
    front.stop()


def test_a_stopping_server_refuses_new_work_and_finishes_what_runs(core: Any, frontend: HttpFrontend) -> None:
    running = http.client.HTTPConnection(*frontend.bind(), timeout=60)
    kept = http.client.HTTPConnection(*frontend.bind(), timeout=60)
    third = http.client.HTTPConnection(*frontend.bind(), timeout=60)
    assert _status(kept, "GET", "/v2/health/live") == 200
    assert _status(third, "GET", "/v2/health/live") == 200
    running.request("POST", "/v2/models/slow/infer", _BODY)
    assert core.submitted.wait(60)
    frontend.refuse()
    assert frontend.drain(0.01) is False
    kept.request("POST", "/v2/models/ident/infer", _BODY)
    response = kept.getresponse()
    assert (response.status, response.getheader("Connection")) == (503, "close")
    assert response.read() == b'{"error":"Server not ready: it is stopping"}'
    assert _status(third, "GET", "/v2/health/live") == 200
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(frontend.bind(), timeout=60)
    core.gate.set()
    assert frontend.drain(60) is True
    assert running.getresponse().status == 200
    for connection in (running, kept, third):
        connection.close()


def test_a_connection_that_waits_to_be_accepted_is_answered_when_the_server_stops_listening(core: Any) -> None:
    front = HttpFrontend(Endpoint(port=0), api_service(Served(core)))
    front.start()
    held, go_on = threading.Event(), threading.Event()
    assert front._running is not None

    def stand_still() -> None:
        held.set()
        go_on.wait(60)

    front._running.loop.call_soon_threadsafe(stand_still)
    assert held.wait(60)
    # The event loop stands still: the kernel takes these for it.
    waiting = [http.client.HTTPConnection(*front.bind(), timeout=60) for _ in range(20)]
    for connection in waiting:
        connection.request("POST", "/v2/models/ident/infer", _BODY)
    refusing = threading.Thread(target=front.refuse)
    refusing.start()
    go_on.set()
    assert {connection.getresponse().status for connection in waiting} <= {200, 503}
    refusing.join(60)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(front.bind(), timeout=60)
    front.stop()
    for connection in waiting:
        connection.close()


def test_a_connection_that_has_just_been_opened_may_still_bring_its_first_request(
    core: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repoagent_server.http.frontend._FIRST_REQUEST_SECONDS", 60.0)
    front = HttpFrontend(Endpoint(port=0), api_service(Served(core)))
    front.start()
    used = http.client.HTTPConnection(*front.bind(), timeout=60)
    assert _status(used, "GET", "/v2/health/live") == 200
    opened = http.client.HTTPConnection(*front.bind(), timeout=60)
    opened.connect()
    front.refuse()
    stopping = threading.Thread(target=front.stop)
    stopping.start()
    assert used.sock is not None
    assert used.sock.recv(1) == b""  # connections are being closed
    assert _status(opened, "POST", "/v2/models/ident/infer", _BODY) == 503
    stopping.join(60)
    opened.close()
    used.close()


def test_stopping_twice_is_stopping_once(core: Any) -> None:
    before = set(threading.enumerate())
    front = HttpFrontend(Endpoint(port=0), api_service(Served(core)))
    front.start()
    assert [thread.name for thread in set(threading.enumerate()) - before].count("http") == 1
    front.stop()
    front.stop()
    assert "http" not in [thread.name for thread in set(threading.enumerate()) - before]


def test_connections_left_open_do_not_keep_a_front_end_from_stopping(
    core: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repoagent_server.http.frontend, "_FIRST_REQUEST_SECONDS", 0.01)
    front = HttpFrontend(Endpoint(port=0), api_service(Served(core)))
    front.start()
    connections = [socket.create_connection(front.bind(), timeout=60) for _ in range(100)]
    front.stop()
    for connection in connections:
        with contextlib.suppress(ConnectionResetError):  # one that the server had not accepted yet
            assert connection.recv(1) == b""
        connection.close()


def test_a_client_that_does_not_read_cannot_keep_a_front_end_from_stopping(
    core: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repoagent_server.shared.connections.FLUSH_SECONDS", 0.01)
    big = Tensor.of(np.zeros((1, 8 << 20), np.float32))
    core.models["ident"].run = lambda inputs: {"OUTPUT0": big}
    front = HttpFrontend(Endpoint(port=0), api_service(Served(core)))
    front.start()
    with socket.create_connection(front.bind(), timeout=60) as connection:
        body = _BODY.replace(b"}]}", b'}],"parameters":{"binary_data_output":true}}')
        head = b"POST /v2/models/ident/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body)
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        front.stop()
