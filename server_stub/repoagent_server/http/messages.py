"""A request and a response between the HTTP parser and the routes, and a response as bytes on the wire."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Protocol

from repoagent.errors import ErrorCode, RepoAgentError
from repoagent.serving.requests.request import InferResponse
from repoagent_server.access import AccessError, Caller, PeerIdentity
from repoagent_server.codec.binary import Buffer
from repoagent_server.codec.json_text import dumps
from repoagent_server.shared.client_text import client_text
from repoagent_server.shared.request_id import RECEIPT

Header = tuple[bytes, bytes]

JSON: Final = b"application/json"
OCTETS: Final = b"application/octet-stream"
EVENTS: Final = b"text/event-stream; charset=utf-8"
TEXT: Final = b"text/plain; charset=utf-8"

#: Triton's HTTP status for each kind of error.
STATUS_OF: Final[dict[ErrorCode, int]] = {
    ErrorCode.UNKNOWN: 400,
    ErrorCode.INTERNAL: 500,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.INVALID_ARG: 400,
    ErrorCode.UNAVAILABLE: 503,
    ErrorCode.UNSUPPORTED: 501,
    ErrorCode.ALREADY_EXISTS: 400,
    ErrorCode.CANCELLED: 400,
}


@dataclass(slots=True)
class Frame:
    """The headers that are about the body, and about that of the answer."""

    length: int = 0
    """Of the body, if it is announced."""
    json_length: bytes | None = None
    """The value of Inference-Header-Content-Length, as sent."""
    encoding: bytes | None = None
    """The value of Content-Encoding, as sent."""
    accepts: bytes | None = None
    """The value of Accept-Encoding, as sent."""
    expects_continue: bool = False
    host: bytes | None = None
    """The value of Host, as sent."""
    origin: bytes | None = None
    """The value of Origin, as sent: a browser's word for whose page asks."""
    fetch_site: bytes | None = None
    """The value of Sec-Fetch-Site, as sent."""
    caller: Caller | None = None
    """The client that the headers, or the connection, belong to: found with the first request that has them."""
    request_id: bytes | None = None
    """The value of X-Request-Id, as sent, if it is valid."""
    fault: tuple[str, int] | None = None
    """Why the request cannot be answered, and the status of the answer."""


@dataclass(slots=True)
class Request:
    """A whole request, its body in one piece. Names of headers keep the client's spelling."""

    method: bytes
    target: bytes
    """Path and query as sent, still percent-encoded."""
    headers: Sequence[Header]
    frame: Frame
    body: Buffer = b""
    alone: bool = False
    """Nothing else can have come in the same turn of the event loop, for whose sake its answer would wait. Written at
    once it costs the server 5 to 10 % less (benchmarks/fast_paths.py)."""
    peer: PeerIdentity | None = None
    """The verified certificate of the connection's client."""
    address: str = ""
    """Where the connection comes from, for logs."""
    model: str = ""
    """The model that the body names, where the path does not; known once the body has been read."""

    @property
    def caller(self) -> Caller | None:
        """Who asks; None without access control, and where no key is needed."""
        return self.frame.caller

    @property
    def id(self) -> str:
        """What the client calls it (X-Request-Id), "" if it does not name it."""
        request_id = self.frame.request_id
        return "" if request_id is None else request_id.decode("ascii")

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header; ``name`` is in lower case."""
        size = len(name)
        for key, value in self.headers:
            if len(key) == size and key.lower() == name:
                return value
        return None


@dataclass(slots=True)
class Response:
    """A whole response: the body is ``body`` followed by ``parts``, which are sent without being copied together."""

    status: int = 200
    body: Buffer = b""
    content_type: bytes = JSON
    headers: Sequence[Header] = ()
    parts: Sequence[Buffer] = field(default=())
    served: InferResponse | None = None
    """What a model has answered, if one has: the request log has its version from here, the headers its receipt."""
    tokens: tuple[int, int] | None = None
    """How many tokens a language model has read and made, if that is known: for the request log. Of a response in
    pieces it is known at its end."""

    @property
    def length(self) -> int:
        return len(self.body) + sum(map(len, self.parts))


class Exchange(Protocol):
    """One request being answered, on the thread of its event loop: by ``respond``, or by ``begin``, ``write``, ``end``.

    Once the client has gone, what is sent is dropped.
    """

    on_cancel: Callable[[], None] | None
    """Called when the client has gone before the response; the code that works on it sets this."""
    on_behind: Callable[[bool], None] | None
    """Called with True when the client stops reading a stream, with False when it reads on; set like ``on_cancel``."""

    def respond(self, response: Response) -> None:
        """Send a whole response. Exactly once."""

    def begin(self, head: Response) -> None:
        """Send status and headers of a response whose body comes piece by piece."""

    def write(self, piece: bytes) -> None:
        """Send a piece of the body (which is not empty) at once."""

    def end(self) -> None:
        """The body is complete."""


def json_response(document: object, status: int = 200) -> Response:
    return Response(status, dumps(document))


def error_response(error: RepoAgentError | str, status: int | None = None) -> Response:
    """``{"error": ...}`` with the status that belongs to the error's code, unless another one is given."""
    if isinstance(error, AccessError):
        status = error.status
    if isinstance(error, RepoAgentError):
        return json_response({"error": client_text(error)}, status or STATUS_OF[error.code])
    return json_response({"error": error}, status or 400)


class WrappedExchange:
    """Passes everything on to ``inner``: an :class:`~repoagent_server.http.messages.Exchange` to inherit from."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Exchange) -> None:
        self._inner = inner

    @property
    def on_cancel(self) -> Callable[[], None] | None:
        return self._inner.on_cancel

    @on_cancel.setter
    def on_cancel(self, value: Callable[[], None] | None) -> None:
        self._inner.on_cancel = value

    @property
    def on_behind(self) -> Callable[[bool], None] | None:
        return self._inner.on_behind

    @on_behind.setter
    def on_behind(self, value: Callable[[bool], None] | None) -> None:
        self._inner.on_behind = value

    def respond(self, response: Response) -> None:
        self._inner.respond(response)

    def begin(self, head: Response) -> None:
        self._inner.begin(head)

    def write(self, piece: bytes) -> None:
        self._inner.write(piece)

    def end(self) -> None:
        self._inner.end()


CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

LAST_CHUNK: Final = b"0\r\n\r\n"

_OK: Final = 200
_BUSY: Final = (429, 503)
_RETRY: Final = (b"Retry-After", b"1")
_STATUS_LINES: Final = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}


def render(
    response: Response, *, close: bool, announce_keep_alive: bool, bodiless: bool, request_id: bytes | None = None
) -> list[Buffer]:
    """The head and the body of ``response``, as pieces to be written one after another.

    With ``close`` the connection ends after it. With ``announce_keep_alive`` an HTTP/1.0 client learns that it stays.
    An answer to HEAD is ``bodiless``. The client's ``request_id`` goes back to it.
    """
    connection = b"close" if close else b"keep-alive" if announce_keep_alive else b""
    head = _head(
        response, connection, b"Content-Length: %d" % (len(response.body) + sum(map(len, response.parts))), request_id
    )
    if bodiless:
        return [head]
    return [head + response.body, *response.parts]


def render_head(response: Response, *, close: bool, chunked: bool, request_id: bytes | None = None) -> bytes:
    """The head of a response whose body follows in pieces: as chunks, or until the connection ends."""
    framing = b"Transfer-Encoding: chunked" if chunked else b""
    return _head(response, b"close" if close else b"", framing, request_id)


def chunk(piece: bytes) -> bytes:
    """A piece of such a body."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def headers_of(response: Response) -> Sequence[Header]:
    """Those of ``response``: it names the receipt of what answered, and when a client should ask again."""
    headers, served = response.headers, response.served
    if served is not None and served.receipt:
        headers = [*headers, (RECEIPT, served.receipt.encode())]
    if response.status not in _BUSY or any(name.lower() == b"retry-after" for name, _ in headers):
        return headers
    return [*headers, _RETRY]


def _head(response: Response, connection: bytes, framing: bytes, request_id: bytes | None) -> bytes:
    lines = [_STATUS_LINES[response.status], b"Content-Type: ", response.content_type, b"\r\n"]
    served = response.served
    plain = response.status == _OK and (served is None or not served.receipt)  # nearly always: one call less
    for name, value in response.headers if plain else headers_of(response):
        lines += (name, b": ", value, b"\r\n")
    if request_id is not None:
        lines += (b"X-Request-Id: ", request_id, b"\r\n")
    if connection:
        lines += (b"Connection: ", connection, b"\r\n")
    if framing:
        lines += (framing, b"\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)
