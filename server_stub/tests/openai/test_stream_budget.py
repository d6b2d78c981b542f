"""What the tokens of streams may cost: writes to sockets, wake-ups of the event loop. Counted, never timed."""

import json
import selectors
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from repoagent_server.handlers.inference import Mailbox

STREAMS, TOKENS = 8, 60
# What else the process writes meanwhile: pytest's workers talk to their master.
SLACK = 0.25
ROUTES = {
    "/v2/models/sums/generate_stream": {"text_input": "47+85:", "stream": True, "end_id": -1},
    "/v1/completions": {"model": "sums", "prompt": "47+85:", "stream": True, "temperature": 0, "ignore_eos": True},
}


def _events(url: str, path: str, body: dict[str, Any]) -> int:
    """How many events so many streams bring at once. Its own calls, send and recv, are not counted as writes."""
    content = json.dumps({**body, "max_tokens": TOKENS}).encode()
    lines = f"POST {path} HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Length: {len(content)}", "", ""
    place = urlsplit(url)
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        connections = [
            stack.enter_context(socket.create_connection((place.hostname, place.port), timeout=60))
            for _ in range(STREAMS)
        ]
        for connection in connections:
            connection.sendall("\r\n".join(lines).encode() + content)
            selector.register(connection, selectors.EVENT_READ)
        return _read(selector, connections).count(b"data: {")


def _read(selector: selectors.BaseSelector, connections: Sequence[socket.socket]) -> bytes:
    """All that comes, one connection after the other."""
    found = dict.fromkeys(connections, b"")
    while selector.get_map():
        for key, _ in selector.select(60):
            assert isinstance(key.fileobj, socket.socket)
            piece = key.fileobj.recv(1 << 16)
            found[key.fileobj] += piece
            if not piece:
                selector.unregister(key.fileobj)
    return b"".join(found.values())


def _writes() -> int:
    """How many writes this process has made."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["syscw"])


@pytest.mark.parametrize(("path", "body"), ROUTES.items(), ids=["generate_stream", "completions"])
def test_a_token_is_written_once_and_the_tokens_of_an_iteration_wake_the_loop_together(
    url: str, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _events(url, path, body)
    wakes: list[Mailbox] = []
    wake = Mailbox._wake

    def counted(box: Mailbox) -> None:
        wakes.append(box)
        wake(box)

    monkeypatch.setattr(Mailbox, "_wake", counted)
    before = _writes()
    events = _events(url, path, body)
    written = _writes() - before - len(wakes)
    assert events >= STREAMS * TOKENS / 2  # some tokens have no text
    assert len(wakes) <= events / 2  # one for each iteration, of which there is one for each token of a stream
    assert written <= (1 + SLACK) * events + 3 * STREAMS  # and heads and ends
