"""What an ingress and a replica send each other: values that every process of the cluster can read."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from repoagent_server.access.credentials import CREDENTIALS
from repoagent_server.codec.binary import Buffer
from repoagent_server.http.messages import Header
from repoagent_server.shared.client_text import client_text

from repoagent.errors import RepoAgentError, error_of

Packed: TypeAlias = Any
"""Bytes, or an array of them: Ray carries the memory of an array beside the message, without copying it into one."""

_Text = TypeVar("_Text", str, bytes, str | bytes)
_LARGE: Final = 1 << 16
_OPENAI: Final = (b"/v1/", b"/tokenize", b"/detokenize")


def pack(buffer: Buffer) -> Packed:
    """``buffer`` for the way to another process."""
    return bytes(buffer) if len(buffer) < _LARGE else np.frombuffer(buffer, np.uint8)


def unpack(packed: Packed) -> Buffer:
    """What :func:`pack` was given; large ones are views of the memory that they arrived in."""
    return packed if isinstance(packed, bytes) else memoryview(packed)


def without_credentials(headers: Iterable[tuple[_Text, _Text]]) -> list[tuple[_Text, _Text]]:
    """``headers`` without keys and tokens: an ingress has judged them, and models must not get them."""
    return [(name, value) for name, value in headers if _lower(name) not in CREDENTIALS]


def is_openai(target: bytes) -> bool:
    """Whether a path is of OpenAI's API, whose errors have a form of their own."""
    return target.startswith(_OPENAI)


def _lower(name: str | bytes) -> str:
    return (name if isinstance(name, str) else name.decode("latin-1")).lower()


@dataclass(frozen=True, slots=True)
class HttpCall:
    """One request, as the client sent it."""

    method: bytes
    target: bytes
    headers: list[Header]
    body: Packed


@dataclass(frozen=True, slots=True)
class HttpHead:
    """An answer, or the beginning of one whose body follows piece by piece."""

    status: int
    content_type: bytes
    headers: list[Header]
    body: tuple[Packed, ...] = ()


@dataclass(frozen=True, slots=True)
class GrpcCall:
    """One message of inference, and the metadata of its call."""

    message: bytes
    metadata: list[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class GrpcAnswer:
    """The message of an answer that names the receipt of what answered."""

    message: bytes
    receipt: str


@dataclass(frozen=True, slots=True)
class GrpcEnd:
    """A call ends with this status."""

    code: int
    """Of ``grpc.StatusCode``."""
    text: str


@dataclass(frozen=True, slots=True)
class Failure:
    """An error. Its text has no private path of the machine that it comes from."""

    code: int
    text: str

    @classmethod
    def of(cls, error: RepoAgentError) -> "Failure":
        return cls(error.code, client_text(error))

    def error(self) -> RepoAgentError:
        """The same error here."""
        return error_of(self.code, self.text)
