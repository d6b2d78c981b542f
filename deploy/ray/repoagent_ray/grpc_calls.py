"""Calls of gRPC that come as messages and metadata: what the handlers of the server see of them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from repoagent_server.access import Caller
from repoagent_server.shared.request_id import found_in

from repoagent_ray.wire import GrpcEnd


class CallEnded(Exception):
    """A handler has ended its call with a status."""

    def __init__(self, end: GrpcEnd) -> None:
        super().__init__(end.text)
        self.end = end


@dataclass(frozen=True, slots=True)
class Named:
    """The details of a call by which grpcio finds its handler."""

    method: str
    """Its path."""


class CallContext:
    """Of grpcio's ``ServicerContext`` what the handlers use. Belongs to one event loop."""

    def __init__(self, metadata: Sequence[tuple[str, str | bytes]], address: str = "") -> None:
        self._metadata = tuple(metadata)
        self.request_id = found_in(metadata)
        """The client's ``x-request-id``, "" if there is none."""
        self.address = address
        """Where the connection of the client comes from."""
        self.caller: Caller | None = None
        """Who calls, where access is controlled."""
        self.receipt = ""
        """The digest of the receipt of what answered, if the answer names it."""
        self.written: asyncio.Queue[bytes | GrpcEnd | None] = asyncio.Queue(1)
        """What a handler of a stream answers, and None at the end."""

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Of the client: text, or bytes under names that end with ``-bin``."""
        return self._metadata

    def name_receipt(self, receipt: str) -> None:
        """The answer names the receipt of what answered."""
        self.receipt = receipt

    async def abort(self, code: Any, details: str = "") -> None:
        """End the call with a status of ``grpc.StatusCode``.

        Raises:
            CallEnded: always.
        """
        raise CallEnded(GrpcEnd(code.value[0], details))

    async def write(self, message: bytes) -> None:
        """Answer with a message of a stream; returns when there is room for it."""
        await self.written.put(message)


async def answer_once(handler: Any, message: bytes, context: CallContext) -> bytes:
    """What ``handler``, of a method with one request and one answer, makes of ``message``.

    Raises:
        CallEnded: the status that ends the call.
    """
    try:
        request = handler.request_deserializer(message) if handler.request_deserializer else message
    except DecodeError:
        await context.abort(grpc.StatusCode.INTERNAL, "Exception deserializing request!")
    answer = await handler.unary_unary(request, context)
    encoded: bytes = handler.response_serializer(answer) if handler.response_serializer else answer
    return encoded


async def one(message: bytes) -> AsyncIterator[bytes]:
    """A stream of one message."""
    yield message
