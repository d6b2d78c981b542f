"""A client of streamed texts that costs little: one thread, plain sockets, nothing parsed but the marks of events.

It shares the cores with the server, as clients elsewhere would not. So it naps when a burst of events begins, and reads
all of the burst at once: it is woken up once for it, not once for each stream.

``llm_client.py PORT`` reads a JSON line for each trace (``{"path", "bodies", "at"}``) and writes one: for each request
the seconds after its moment ``at`` at which its first and its last event came, how many there were, and all seconds of
the processor that the client took. :class:`Client` is the other end of the pipe.
"""

import json
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

EVENT = b"data: {"
#: Seconds in which a server writes the events of one step to all streams.
NAP = 0.001
LINES = "POST {} HTTP/1.1", "Host: localhost", "Content-Type: application/json", "Content-Length: {}"
HEAD = "\r\n".join([*LINES, "Connection: close", "", ""])


@dataclass(slots=True)
class Stream:
    """One request and what has come of it."""

    at: float
    data: bytes
    tail: bytes = b""
    status: bytes = b""
    first: float = 0.0
    last: float = 0.0
    events: int = 0

    def take(self, piece: bytes, now: float) -> None:
        """More bytes of the answer."""
        if not self.status:
            self.status = piece[9:12]
        text = self.tail + piece
        found = text.count(EVENT)
        # The end of the piece may be the beginning of a mark.
        self.tail = text[max(text.rfind(EVENT) + 1, len(text) - len(EVENT) + 1, 0) :]
        if found:
            self.first = self.first or now
            self.last = now
            self.events += found


def run(port: int, streams: Sequence[Stream]) -> float:
    """Send all at their moments, on connections that are open already; seconds until the last has ended."""
    with selectors.DefaultSelector() as selector:
        waiting = [(stream, socket.create_connection(("127.0.0.1", port))) for stream in streams]
        began = time.perf_counter()
        opened = 0
        while waiting or opened:
            now = time.perf_counter() - began
            while waiting and waiting[0][0].at <= now:
                stream, connection = waiting.pop(0)
                connection.sendall(stream.data)
                selector.register(connection, selectors.EVENT_READ, (stream, connection))
                opened += 1
            pause = waiting[0][0].at - now if waiting else None
            if not selector.select(pause):
                continue
            now = time.perf_counter() - began
            if opened > 1:
                time.sleep(NAP)
            for key, _ in selector.select(0):
                stream, source = key.data
                piece = source.recv(1 << 16)
                stream.take(piece, now)
                if not piece:
                    selector.unregister(source)
                    source.close()
                    opened -= 1
        return time.perf_counter() - began


def answer(port: int, order: dict[str, Any]) -> dict[str, Any]:
    """What one trace brings."""
    streams = []
    for body, at in zip(order["bodies"], order["at"], strict=True):
        content = json.dumps(body).encode()
        streams.append(Stream(at, HEAD.format(order["path"], len(content)).encode() + content))
    used = time.process_time()
    seconds = run(port, streams)
    wrong = sorted({stream.status.decode() for stream in streams} - {"200"})
    return {
        "wrong": wrong,
        "seconds": seconds,
        "cpu": time.process_time() - used,
        "first": [stream.first - stream.at for stream in streams],
        "last": [stream.last - stream.at for stream in streams],
        "events": [stream.events for stream in streams],
    }


class Client:
    """A process with that program."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        with self._process:
            self._process.terminate()

    def ask(self, path: str, bodies: Sequence[dict[str, Any]], at: Sequence[float] = ()) -> dict[str, Any]:
        """The answers to ``bodies``, sent at those moments, or all at once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"path": path, "bodies": bodies, "at": list(at) or [0.0] * len(bodies)}
        print(json.dumps(order), file=self._process.stdin, flush=True)
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        if found["wrong"] or not all(found["events"]):
            raise RuntimeError(f"{path}: answers with status {found['wrong']}, events {found['events']}")
        return found


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(int(sys.argv[1]), json.loads(line))), flush=True)
