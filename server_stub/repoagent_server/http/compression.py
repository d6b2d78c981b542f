"""Compressed bodies of inference requests and responses: gzip and deflate, both bounded in memory."""

import asyncio
import logging
import zlib
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Final

from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError
from repoagent_server.codec.binary import Buffer
from repoagent_server.http.body import json_length
from repoagent_server.http.messages import Exchange, Request, Response, WrappedExchange, error_response
from repoagent_server.http.router import Deferred, Params
from repoagent_server.shared.reserve import GrowingBody, Reserve, inflate

logger = logging.getLogger(__name__)

_CODINGS: Final = {b"gzip": 31, b"deflate": 15}
"""Names, and zlib's window bits for each."""
_LEVEL: Final = 1
_GZIP_MAGIC: Final = b"\x1f\x8b"
_MEMBERS: Final = 10_000
"""Gzip data may be several members in a row; this many, whatever is in them."""
_WORTH_IT: Final = 1024
"""Bytes below which a response goes out as it is: compressing it would cost a thread hop and gain nothing."""


class CodedRoute:
    """Puts decompression in front of a route, and compression behind it; both happen on threads of ``pool``."""

    def __init__(
        self, inner: Deferred, loop: asyncio.AbstractEventLoop, pool: Executor, max_size: int, reserve: Reserve
    ) -> None:
        self._inner = inner
        self._reserve = reserve
        self._loop = loop
        self._pool = pool
        self._max_size = max_size

    def __call__(self, request: Request, params: Params, exchange: Exchange) -> None:
        wanted = request.frame.accepts
        coding = accepted(wanted) if wanted else b""
        if coding:
            exchange = _Compressing(exchange, coding, self._then)
        given = (request.frame.encoding or b"").lower()
        if given not in _CODINGS:
            self._inner(request, params, exchange)
            return

        def decoded(body: Buffer) -> None:
            frame = replace(request.frame, encoding=None)
            self._inner(replace(request, frame=frame, body=body), params, exchange)

        unaligned = json_length(request.frame)
        self._then(lambda: decompress(request.body, given, self._max_size, self._reserve, unaligned), decoded, exchange)

    def _then(self, work: Callable[[], Buffer], go_on: Callable[[Buffer], None], exchange: Exchange) -> None:
        """Have ``work`` done on a thread, and its result taken on the event loop; its error is the answer."""

        def deliver(future: Future[Buffer]) -> None:
            try:
                go_on(future.result())
            except RepoAgentError as error:
                exchange.respond(error_response(error))
            except Exception as error:  # a fault of ours must not leave the client without an answer
                logger.error("a compressed request failed: %s", error, exc_info=error)
                exchange.respond(error_response(InternalError(f"unexpected {type(error).__name__}")))
            finally:
                del future  # else it, the error and this frame are a cycle, which holds the request's memory

        future = self._pool.submit(work)
        future.add_done_callback(lambda done: self._loop.call_soon_threadsafe(deliver, done))


_Then = Callable[[Callable[[], Buffer], Callable[[Buffer], None], Exchange], None]


class _Compressing(WrappedExchange):
    """An exchange whose good responses go out compressed; errors stay as they are, as in Triton."""

    def __init__(self, inner: Exchange, coding: bytes, then: _Then) -> None:
        super().__init__(inner)
        self._coding = coding
        self._then = then

    def respond(self, response: Response) -> None:
        size = len(response.body) + sum(len(part) for part in response.parts)
        if response.status != 200 or size < _WORTH_IT:
            self._inner.respond(response)
            return

        def compressed(body: Buffer) -> None:
            headers = [*response.headers, (b"Content-Encoding", self._coding)]
            self._inner.respond(replace(response, body=body, parts=(), headers=headers))

        self._then(lambda: compress(response, self._coding), compressed, self._inner)


def accepted(header: bytes) -> bytes:
    """The coding that an Accept-Encoding header likes best, empty for none."""
    best, best_quality = b"", 0.0
    for item in header.lower().split(b","):
        name, _, parameters = item.partition(b";")
        quality = _quality(parameters)
        if name.strip() in _CODINGS and quality > best_quality:
            best, best_quality = name.strip(), quality
    return best


def _quality(parameters: bytes) -> float:
    name, _, value = parameters.partition(b"=")
    try:
        return float(value) if name.strip() == b"q" else 1.0
    except ValueError:
        return 0.0


def compress(response: Response, coding: bytes) -> bytes:
    """The whole body of ``response``, compressed."""
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _CODINGS[coding])
    pieces = [compressor.compress(piece) for piece in (response.body, *response.parts)]
    return b"".join([*pieces, compressor.flush()])


def decompress(body: Buffer, coding: bytes, limit: int, reserve: Reserve, unaligned: int = 0) -> memoryview:
    """What was compressed, counted as long as it is in memory: see :class:`GrowingBody`.

    Raises:
        InvalidArgumentError: it is damaged, or more than ``limit`` bytes, or made of very many members.
        UnavailableError: ``reserve`` has no room for it.
    """
    rest, into = memoryview(body), GrowingBody(unaligned)
    hold = reserve.hold(into)
    for _ in range(_MEMBERS):
        worker = zlib.decompressobj(_CODINGS[coding])
        try:
            rest = rest[inflate(worker, rest, into, hold, limit, lambda: _too_large(limit)) :]
        except zlib.error as error:
            raise _damaged(coding, error) from None
        if not worker.eof:
            raise _damaged(coding, "its end is missing")
        if coding != b"gzip" or bytes(rest[: len(_GZIP_MAGIC)]) != _GZIP_MAGIC:
            return into.whole(hold)  # what follows and is no member is passed over
    raise _damaged(coding, f"it has more than {_MEMBERS} members")


def _damaged(coding: bytes, reason: object) -> InvalidArgumentError:
    return InvalidArgumentError(f"the request body is not valid {coding.decode()} data: {reason}")


def _too_large(limit: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the request body exceeds the maximum allowed input size of {limit} bytes when it is decompressed. Use "
        "--http-max-input-size to increase the limit."
    )
