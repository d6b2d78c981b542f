"""A web server of files that counts what it sends and can fail as networks, stores and enemies do."""

import http.server
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Self
from urllib.parse import unquote

_PIECE: Final = 1 << 16


class Request(http.server.BaseHTTPRequestHandler):
    """One request. Handlers that a test brings get it and answer with its methods."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "_Server"

    def do_GET(self) -> None:  # the name is the library's
        self.answer_with(self.server.owner)

    def do_HEAD(self) -> None:
        self.answer_with(self.server.owner)

    def do_POST(self) -> None:
        self.answer_with(self.server.owner)

    def body(self) -> bytes:
        """What the client sent along."""
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""

    @property
    def target(self) -> str:
        """The path, decoded, without the query."""
        return unquote(self.path.partition("?")[0])

    def answer_with(self, owner: "FileServer") -> None:
        with owner.lock:
            owner.requests.append((self.target, self.headers.get("Range", "")))
            owner.seen_headers.append(dict(self.headers.items()))
        for handle in owner.handlers:
            if handle(self):
                return
        content = owner.files.get(self.target)
        if content is None:
            self.answer(404, b"no such file")
        else:
            self._send_file(owner, content)

    def answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """A whole answer."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def break_off(self) -> None:
        """Close the connection at once."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _send_file(self, owner: "FileServer", content: bytes) -> None:
        start, end = 0, len(content)
        asked = self.headers.get("Range")
        if asked and owner.ranges:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) + 1, len(content)) if last else len(content)
            if start >= len(content):
                self.answer(416, headers={"Content-Range": f"bytes */{len(content)}"})
                return
        self.send_response(206 if asked and owner.ranges else 200)
        if owner.tags:
            self.send_header("ETag", owner.tag_of(self.target, content))
        if asked and owner.ranges:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        for position in range(start, end, _PIECE):
            if owner.before_piece is not None and owner.before_piece(self, position) is False:
                self.break_off()
                return
            piece = memoryview(content)[position : min(position + _PIECE, end)]
            try:
                self.wfile.write(piece)
            except OSError:
                return
            with owner.lock:
                owner.sent += len(piece)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    owner: "FileServer"

    def process_request(self, request: Any, client_address: Any) -> None:
        with self.owner.lock:
            self.owner.connections += 1
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self.owner.gone:
                self.owner.connections -= 1
                self.owner.gone.notify_all()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes is no error."""


class FileServer:
    """Serves ``files`` on loopback until it is closed. Everything may be changed while it runs."""

    def __init__(self, files: dict[str, bytes] | None = None, *, address: str = "127.0.0.1") -> None:
        self.files = files if files is not None else {}
        self.ranges = True
        self.tags = True
        self.handlers: list[Callable[[Request], bool]] = []
        """Asked first, in order; one that answers returns true."""
        self.before_piece: Callable[[Request, int], bool | None] | None = None
        """Called before each 64 KiB with their position; False breaks the connection off."""
        self.requests: list[tuple[str, str]] = []
        self.seen_headers: list[dict[str, str]] = []
        self.sent = 0
        self.lock = threading.Lock()
        self.gone = threading.Condition(self.lock)
        """Notified when a connection has ended."""
        self.connections = 0
        self._server = _Server((address, 0), Request)
        self._server.owner = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        self.port: int = self._server.server_port
        self.host = f"{address}:{self.port}"
        self.url = f"http://{self.host}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def restart_count(self) -> None:
        """Begin ``sent`` at 0, once the connections of all clients, who must have gone, have ended."""
        with self.gone:
            assert self.gone.wait_for(lambda: not self.connections, timeout=60)
            self.sent = 0

    def tag_of(self, path: str, content: bytes) -> str:
        return f'"{hash((path, content)) & 0xFFFFFFFF:x}"'
