"""Connections lost when a server leaves a shared port, with the filter of http/listener.py and without it.

    python benchmarks/rolling_restart.py                  # exit status 1 if one is lost with the filter
    python benchmarks/rolling_restart.py --restarts 500 --clients 8

Two listeners share one port (SO_REUSEPORT), as two servers do during a rolling restart behind ``--reuse-http-port``.
Clients open a connection per request, one after the other, without pause. One listener after the other is given up as
the front end does it, and a new one takes its place: by turns with the filter and without it, so that a slow moment of
the machine hits both. Between two restarts there is time for a segment that is sent again after a second. A request
that is reset, or not answered within ten seconds, is lost.
"""

import contextlib
import selectors
import socket
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import cycle

from measures import options_of, table
from repoagent_server.http.listener import bound, ignore_new, queued

PAUSE_SECONDS = 1.3
HANDSHAKE_SECONDS = 0.1


class Server:
    """Answers one byte to each connection, on a thread of its own."""

    def __init__(self, port: int = 0) -> None:
        self._listener = bound("127.0.0.1", port, reuse_port=True)
        self._listener.listen(2048)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._leaving = threading.Event()
        self._filtered = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._leaving.is_set():
                selector.select(0.01)
                self._answer_queued()
            if self._filtered and ignore_new(self._listener):
                time.sleep(HANDSHAKE_SECONDS)  # handshakes that have begun
            self._answer_queued()
        self._listener.close()

    def _answer_queued(self) -> None:
        for connection in queued(self._listener):
            with connection, contextlib.suppress(OSError):
                connection.send(b".")

    def leave(self, *, filtered: bool) -> None:
        """Give the port up."""
        self._filtered = filtered
        self._leaving.set()
        self._thread.join()


@dataclass(slots=True)
class Clients:
    """What the clients saw, by what the restarts of that time were like."""

    port: int
    kind: str = ""
    done: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    slow: Counter[str] = field(default_factory=Counter)
    over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        """Ask until it is over."""
        while not self.over.is_set():
            kind, start = self.kind, time.monotonic()
            try:
                with socket.create_connection(("127.0.0.1", self.port), 10) as connection:
                    answered = connection.recv(1) == b"."
            except OSError:
                answered = False
            with self.lock:
                self.done[kind] += 1
                self.lost[kind] += not answered
                self.slow[kind] += time.monotonic() - start > 0.5


def main() -> int:
    arguments = options_of(__doc__, restarts=(60, "of each kind"), clients=8)
    first = Server()
    servers = [first, Server(first.port)]
    clients = Clients(first.port)
    kinds = cycle(("without", "with"))
    clients.kind = next(kinds)
    threads = [threading.Thread(target=clients.run) for _ in range(arguments.clients)]
    for thread in threads:
        thread.start()
    for _ in range(2 * arguments.restarts):
        leaving = servers.pop(0)
        servers.append(Server(first.port))
        leaving.leave(filtered=clients.kind == "with")
        time.sleep(PAUSE_SECONDS)
        clients.kind = next(kinds)
    clients.over.set()
    for thread in threads:
        thread.join()
    for server in servers:
        server.leave(filtered=True)
    kept = ("without", "with")
    rows = [
        (kind, arguments.restarts, *(count[kind] for count in (clients.done, clients.lost, clients.slow)))
        for kind in kept
    ]
    print(table(("filter", "restarts", "requests", "lost", "over 0.5 s"), rows))
    return int(clients.lost["with"] > 0)


if __name__ == "__main__":
    sys.exit(main())
