"""A key to sign with, and an endpoint to ask."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.file_server import FileServer, Request


@dataclass
class Endpoint:
    """``answer(body)`` gives status and body of the reply; None closes the connection without one."""

    url: str = ""
    answer: Callable[[Any], tuple[int, bytes] | None] = lambda _body: (200, b'{"authorized": true}')
    asked: list[tuple[str | None, Any]] = field(default_factory=list)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    told = Endpoint()

    def handle(request: Request) -> bool:
        body = json.loads(request.body())
        told.asked.append((request.headers.get("Authorization"), body))
        reply = told.answer(body)
        if reply is None:
            request.break_off()
        else:
            request.answer(*reply, {"Location": f"{told.url}/elsewhere"})
        return True

    with FileServer() as server:
        server.handlers.append(handle)
        told.url = server.url
        yield told


@pytest.fixture(scope="session")
def private_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


@pytest.fixture(scope="session")
def public_pem(private_key: Ed25519PrivateKey) -> bytes:
    return private_key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
