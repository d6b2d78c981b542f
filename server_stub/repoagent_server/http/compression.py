"""Compressed bodies of inference requests and responses: gzip and deflate, both bounded in memory."""

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from repoagent.errors import InvalidArgumentError
from repoagent_server.codec.binary import Buffer
from repoagent_server.http.body import json_length
from repoagent_server.http.long_work import LongWork
from repoagent_server.http.messages import Exchange, Request, Response, WrappedExchange
from repoagent_server.shared.reserve import GrowingBody, Reserve, inflate

_CODINGS: Final = {b"gzip": 31, b"deflate": 15}
"""Names, and zlib's window bits for each."""
_LEVEL: Final = 1
_GZIP_MAGIC: Final = b"\x1f\x8b"
_MEMBERS: Final = 10_000
"""Gzip data may be several members in a row; this many, whatever is in them."""
_WORTH_IT: Final = 1024
"""Bytes below which a response goes out as it is: compressing it would cost a thread hop and gain nothing."""


class CodedBodies:
    """Decompresses requests and compresses their answers, both on the threads of ``work``."""

    def __init__(self, work: LongWork, max_size: int, reserve: Reserve) -> None:
        self._work = work
        self._max_size = max_size
        self._reserve = reserve

    def answering(self, request: Request, exchange: Exchange) -> Exchange:
        """What answers ``request`` in the coding that it accepts, if there is one."""
        coding = accepted(request.frame.accepts or b"")
        return _Compressing(exchange, coding, request, self._work) if coding else exchange

    def decode(self, request: Request, then: Callable[[Request], None], exchange: Exchange) -> bool:
        """Have ``then`` called with the request as it was before its compression; False if it has none."""
        coding = (request.frame.encoding or b"").lower()
        if coding not in _CODINGS:
            return False

        def decoded(body: Buffer) -> None:
            frame = replace(request.frame, encoding=None, accepts=None)  # what it accepts has been looked at
            then(replace(request, frame=frame, body=body))

        limit, unaligned = self._max_size, json_length(request.frame)
        self._work.do(
            lambda _: decompress(request.body, coding, limit, self._reserve, unaligned), decoded, request, exchange
        )
        return True


class _Compressing(WrappedExchange):
    """An exchange whose good responses go out compressed; errors stay as they are, as in Triton."""

    def __init__(self, inner: Exchange, coding: bytes, request: Request, work: LongWork) -> None:
        super().__init__(inner)
        self._coding = coding
        self._request = request
        self._work = work

    def respond(self, response: Response) -> None:
        if response.status != 200 or response.length < _WORTH_IT:
            self._inner.respond(response)
            return

        def compressed(body: bytes) -> None:
            headers = [*response.headers, (b"Content-Encoding", self._coding)]
            self._inner.respond(replace(response, body=body, parts=(), headers=headers))

        self._work.do(lambda _: compress(response, self._coding), compressed, self._request, self._inner)


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
