"""A key to sign with, and an endpoint to ask."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat


@dataclass
class Endpoint:
    """``answer(body)`` gives status and body of the reply; None closes the connection without one."""

    url: str = ""
    answer: Callable[[Any], tuple[int, bytes] | None] = lambda _body: (200, b'{"authorized": true}')
    asked: list[tuple[str | None, Any]] = field(default_factory=list)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    told = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told.asked.append((self.headers.get("Authorization"), body))
            reply = told.answer(body)
            if reply is None:
                return
            self.send_response(reply[0])
            self.send_header("Content-Length", str(len(reply[1])))
            self.send_header("Location", f"{told.url}/elsewhere")
            self.end_headers()
            self.wfile.write(reply[1])

        def log_message(self, *_args: Any) -> None:
            """Be quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        told.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield told
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def private_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


@pytest.fixture(scope="session")
def public_pem(private_key: Ed25519PrivateKey) -> bytes:
    return private_key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
