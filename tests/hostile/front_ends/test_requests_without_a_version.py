"""T14: a request line without a version of HTTP is not answered as if it had one."""

import socket

import pytest

from tests.hostile.front_ends.conftest import Ways


@pytest.mark.parametrize(
    "line", [b"GET /v2/health/live", b"GET /v2/health/live HTTP/0.9", b"GET /v2/health/live HTTP/3.0"]
)
def test_a_request_of_another_version_is_refused(line: bytes, ways: Ways) -> None:
    with socket.create_connection(ways.address, timeout=30) as connection:
        connection.sendall(line + b"\r\nHost: localhost\r\n\r\n")
        answer = connection.makefile("rb").readline()
    assert answer.startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_the_two_versions_are_answered(version: bytes, ways: Ways) -> None:
    with socket.create_connection(ways.address, timeout=30) as connection:
        connection.sendall(b"GET /v2/health/live HTTP/" + version + b"\r\nHost: localhost\r\n\r\n")
        answer = connection.makefile("rb").readline()
    assert answer.split()[1] == b"200"
