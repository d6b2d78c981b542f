"""benchmarks/h2spec.py, which runs h2spec against the gRPC port. With H2SPEC set to the program, all of it runs."""

import importlib
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded

from tests.docs.conftest import TREE

H2SPEC = os.environ.get("H2SPEC", "")
OUTPUT = """\
Generic tests for HTTP/2 server
  2. Streams and Multiplexing
    1: Sends a frame\r    ✔ 1: Sends a frame
    2: Sends an update\r    using source address 127.0.0.1:58766
    \u00d7 2: Sends an update
      -> The endpoint MUST accept it.

Hypertext Transfer Protocol Version 2 (HTTP/2)
  6. Frame Definitions
    6.9. WINDOW_UPDATE
      6.9.1. The Flow-Control Window
        \u00d7 2: Sends a window

Failures:

Generic tests for HTTP/2 server
  2. Streams and Multiplexing
    \u00d7 2: Sends an update

Finished in 14.2627 seconds
147 tests, 143 passed, 2 skipped, 2 failed
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TREE / "benchmarks"))
    return importlib.import_module("h2spec")


def test_the_output_is_read(script: ModuleType) -> None:
    result = script.read(OUTPUT)
    assert result.summary == "147 tests, 143 passed, 2 skipped, 2 failed"
    assert (result.passed, result.skipped) == (143, 2)
    assert result.failed == {"generic/2/2": "Sends an update", "http2/6.9.1/2": "Sends a window"}


def test_only_tests_that_need_pages_may_fail_without_them(script: ModuleType) -> None:
    result = script.read(OUTPUT)
    assert script.faults(result, pages=False) == ["http2/6.9.1/2 failed: Sends a window"]
    assert len(script.faults(result, pages=True)) == 3


def test_no_output_is_a_fault(script: ModuleType) -> None:
    assert script.faults(script.read("Error: connection refused"), pages=False) == ["h2spec printed no result"]


def test_without_h2spec_it_fails_and_names_what_is_missing() -> None:
    command = [sys.executable, str(TREE / "benchmarks" / "h2spec.py"), "--h2spec", "/none/h2spec"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stderr
    assert run.stdout.startswith("MISSING h2spec")


@pytest.mark.slow
def test_the_port_with_pages_has_pages_and_serves_models(script: ModuleType, tmp_path: Path) -> None:
    script.write_wide_models(tmp_path / "models")
    with script.served(tmp_path, pages=True, tls=False) as server:
        with script.connected(server.port, None) as channel:
            assert channel.unary_unary(script.METHOD)(
                script.message("add", script.numbers(16)), timeout=60, wait_for_ready=True
            )
        assert _page(server.port) == ("200", b"\0\0\0\0\6a page")


@pytest.mark.slow
@pytest.mark.skipif(not H2SPEC, reason="H2SPEC does not name the program h2spec")
def test_h2spec_passes() -> None:
    command = [sys.executable, str(TREE / "benchmarks" / "h2spec.py"), "--h2spec", str(shutil.which(H2SPEC))]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def _page(port: int) -> tuple[str, bytes]:
    """Status and body of ``/``, as a client that we did not write has them."""
    client = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    client.initiate_connection()
    asked = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "localhost")]
    client.send_headers(1, asked, end_stream=True)
    status, body, ended = "", b"", False
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        while not ended:
            connection.sendall(client.data_to_send())
            received = connection.recv(1 << 16)
            assert received, "the connection has ended"
            events: list[Any] = client.receive_data(received)
            for event in events:
                if isinstance(event, ResponseReceived):
                    fields = {str(name): str(value) for name, value in event.headers}
                    status = fields[":status"]
                elif isinstance(event, DataReceived):
                    body += event.data
                ended = ended or isinstance(event, StreamEnded)
    return status, body
