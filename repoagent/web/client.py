"""GET requests whose answers may be large, slow, or hostile."""

import contextlib
import io
import os
import re
import socket
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from repoagent.errors import InvalidArgumentError, UnavailableError
from repoagent.web.hosts import Hosts
from repoagent.web.urls import Origin, join, origin_of, shown_url, target_of

if TYPE_CHECKING:  # imported where they are used: most loads ask no server
    import http.client
    import ssl

_CONNECT_SECONDS: Final = 5.0
_KEPT: Final = 16
"""Idle connections, of all hosts together."""


class Connections:
    """Makes connections and keeps idle ones. Thread-safe."""

    def __init__(self, hosts: Hosts, timeout: float) -> None:
        self._hosts = hosts
        self._timeout = timeout
        self._lock = threading.Lock()
        self._idle: list[tuple[Origin, http.client.HTTPConnection]] = []
        self._tls: ssl.SSLContext | None = None

    def take(self, origin: Origin) -> "tuple[http.client.HTTPConnection, bool]":
        """A connection to ``origin``, and whether it was used before: the server may have closed it by now. Raises
        ``InvalidArgumentError`` if the host may not be asked, ``OSError`` if it does not answer."""
        with self._lock:
            for index in range(len(self._idle) - 1, -1, -1):
                if self._idle[index][0] == origin:
                    return self._idle.pop(index)[1], True
        return self._open(origin), False

    def give_back(self, origin: Origin, connection: "http.client.HTTPConnection") -> None:
        """Keep ``connection``, whose last answer was read to its end."""
        with self._lock:
            self._idle.append((origin, connection))
            old = self._idle.pop(0)[1] if len(self._idle) > _KEPT else None
        if old is not None:
            old.close()

    def close(self) -> None:
        """Close what is idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    def uses_proxy(self, origin: Origin) -> bool:
        """Whether requests to ``origin`` go to a proxy, with the whole URL."""
        return origin.scheme == "http" and self._proxy(origin) is not None

    def _open(self, origin: Origin) -> "http.client.HTTPConnection":
        proxy = self._proxy(origin)
        if proxy is None:
            return self._connected(origin, self._socket(origin, self._hosts))
        self._hosts.check_literal(origin)
        # The proxy is the operator's choice, wherever it is.
        sock = self._socket(proxy, self._hosts.with_origin(proxy))
        return self._connected(origin, sock, tunnel=origin.scheme == "https")

    def _connected(self, origin: Origin, sock: socket.socket, *, tunnel: bool = False) -> "http.client.HTTPConnection":
        import http.client

        connection: Any = http.client.HTTPConnection(origin.host, origin.port, timeout=self._timeout)
        connection.response_class = self._response
        connection.sock = sock
        try:
            if tunnel:
                connection.set_tunnel(origin.host, origin.port)
                connection._tunnel()
            if origin.scheme == "https":
                connection.sock = self._context().wrap_socket(sock, server_hostname=origin.host)
            connection.sock.settimeout(self._timeout)
            connection.auto_open = 0  # It would look the name up again.
        except BaseException:
            sock.close()
            raise
        return connection  # type: ignore[no-any-return]

    def _response(self, sock: socket.socket, **options: Any) -> "http.client.HTTPResponse":
        import http.client

        patient: Any = _PatientSocket(sock, self._timeout)
        return http.client.HTTPResponse(patient, **options)

    def _socket(self, origin: Origin, hosts: Hosts) -> socket.socket:
        failure: OSError | None = None
        for family, address in hosts.addresses(origin):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.settimeout(min(_CONNECT_SECONDS, self._timeout))
                sock.connect(address)
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                sock.close()
                failure = error
                continue
            return sock
        raise failure or OSError(f"{origin.host} has no address")

    def _context(self) -> "ssl.SSLContext":
        import ssl

        with self._lock:
            if self._tls is None:
                self._tls = ssl.create_default_context(cafile=os.environ.get("REPOAGENT_CA_FILE") or None)
            return self._tls

    def _proxy(self, origin: Origin) -> Origin | None:
        import urllib.request

        url = urllib.request.getproxies().get(origin.scheme)
        if not url or urllib.request.proxy_bypass(f"{origin.host}:{origin.port}"):
            return None
        proxy = origin_of(url if "://" in url else f"http://{url}")
        if proxy.scheme != "http":
            raise InvalidArgumentError(f"the proxy {proxy} has to be spoken to over https, which is not supported")
        return proxy


_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS: Final = 5
_PIECE: Final = 1 << 16
_SLOWEST: Final = 4
"""A small answer, headers, and the next bytes of a body may take this many times the time limit of one read."""
_LEAST: Final = 1 << 10
"""Bytes of an answer that must come in as much time, whatever its size."""
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e\t]*")


class WebError(UnavailableError):
    """A server did not answer, or not as it should have. ``status`` is 0 if there was no answer at all."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class WebAnswer:
    """A whole small answer. Names of ``headers`` are in lower case; ``url`` is where redirects led."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    url: str = ""


class _Patience(io.RawIOBase):
    """What comes over a socket, whose own limit is one of silence: a wait has to end as well if bytes drip.

    A wait is for the headers, or for the next bytes of the body: chunks have sizes before them, and lines after.
    """

    def __init__(self, raw: Any, seconds: float) -> None:
        self._raw = raw
        self._limit = _SLOWEST * seconds
        self._waited = 0.0
        self._arrived = 0
        self.begin_wait()

    def begin_wait(self) -> None:
        """What was waited for has come."""
        self._end = monotonic() + self._limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        started = monotonic()
        if started > self._end or self._waited > self._limit:
            raise TimeoutError("its answer drips")
        count: int = self._raw.readinto(buffer)
        self._waited += monotonic() - started  # while the reader is busy, nothing can come
        self._arrived += count
        if self._arrived >= _LEAST:
            self._waited, self._arrived = 0.0, 0
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _PatientSocket:
    """Of a socket what an answer needs."""

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        self._sock = sock
        self._seconds = seconds

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Patience(self._sock.makefile("rb", buffering=0), self._seconds))


class WebResponse:
    """The start of an answer; the body is read by :meth:`readinto`."""

    def __init__(self, url: str, response: "http.client.HTTPResponse") -> None:
        self.url = url
        self.status = response.status
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.getheaders()}
        self._response = response
        stream: Any = response.fp
        self._patience: _Patience = stream.raw
        self._left = None if response.chunked else response.length

    def readinto(self, buffer: memoryview) -> int:
        """Read some of the body; 0 at its end, also if the connection ended before that. Raises ``WebError`` if it was
        silent for too long, brings next to nothing, or broke."""
        import http.client

        self._patience.begin_wait()
        try:
            if self._left is None:
                piece = self._response.read1(len(buffer))
                buffer[: len(piece)] = piece
                return len(piece)
            # The response's own readinto waits until all of the buffer is full.
            count = self._response.fp.readinto1(buffer[: self._left]) if self._left else 0
            self._left -= count
            return count
        except (OSError, http.client.HTTPException) as error:
            raise WebError(f"{shown_url(self.url)} stopped answering: {type(error).__name__}: {error}") from None

    @property
    def ended(self) -> bool:
        """Whether the body was read to its end, so that the connection can be used again."""
        return (self._left == 0 or self._response.isclosed()) and not self._response.will_close


class WebClient:
    """A client. Thread-safe. Nothing is ever decompressed, and no answer changes what is sent next (no cookies).

    Proxies come from the usual variables, authorities from the system's list (``SSL_CERT_FILE``, ``SSL_CERT_DIR``).
    """

    def __init__(
        self,
        hosts: Hosts | None = None,
        *,
        timeout: float = 15.0,
        offline: str = "",
    ) -> None:
        """Ask nothing yet.

        Args:
            hosts: Which hosts may be asked; by default public ones, and those in ``REPOAGENT_FETCH_HOSTS``.
            timeout: Seconds of silence after which a connection is given up; four times as many where bytes drip.
            offline: Why nothing may be asked at all; empty: the hosts decide.
        """
        self.hosts = hosts if hosts is not None else Hosts.from_environment()
        self._offline = offline
        self._timeout = timeout
        self._connections = Connections(self.hosts, timeout)
        # Files that are listed and perhaps never read hold the client: no one could know when to close it.
        self._finalizer = weakref.finalize(self, self._connections.close)

    @classmethod
    def of_operator(cls, url: str, *, timeout: float = 15.0) -> "WebClient":
        """One for ``url``, which the operator gave: its host need not be public, and those of redirects must be.
        ``InvalidArgumentError`` if it is not a URL of the web."""
        return cls(Hosts.from_environment().with_origin(origin_of(url)), timeout=timeout)

    def close(self) -> None:
        """Close idle connections now; otherwise they close when no one uses the client any more."""
        self._connections.close()

    def fetch(self, url: str, *, headers: Mapping[str, str] | None = None, limit: int = 1 << 20) -> WebAnswer:
        """A whole answer of at most ``limit`` bytes, whatever its status.

        Raises:
            WebError: no answer, an answer that takes far too long, or more than ``limit`` bytes.
            InvalidArgumentError: a URL or a redirect that is not followed.
        """
        end = monotonic() + _SLOWEST * self._timeout
        body = bytearray()
        with self.get(url, headers=headers) as response:
            piece = memoryview(bytearray(_PIECE))
            while count := response.readinto(piece):
                body += piece[:count]
                if len(body) > limit:
                    raise WebError(f"{shown_url(url)} answered with more than {limit} bytes", response.status)
                if monotonic() > end:
                    raise WebError(f"{shown_url(url)} takes too long to answer")
            expected = response.headers.get("content-length")
            if expected is not None and expected.isdecimal() and len(body) < int(expected):
                raise WebError(f"{shown_url(url)} broke off after {len(body)} of {expected} bytes")
            return WebAnswer(response.status, response.headers, bytes(body), response.url)

    @contextmanager
    def get(self, url: str, *, headers: Mapping[str, str] | None = None) -> Iterator[WebResponse]:
        """The start of an answer after redirects, for a block that reads it.

        ``headers`` go to the origin of ``url`` only, except ``Range`` and ``Accept``.

        Raises:
            WebError: no answer, too many redirects, or a compressed answer.
            UnavailableError: nothing may be asked.
            InvalidArgumentError: a URL or a redirect that is not followed.
        """
        if self._offline:
            raise UnavailableError(f"{shown_url(url)} is not asked: {self._offline}")
        sent = {"Accept-Encoding": "identity", "User-Agent": "repoagent", **(headers or {})}
        _check_headers(sent)
        first = origin_of(url)
        where = url
        for _ in range(_MOST_REDIRECTS + 1):
            origin = origin_of(where)
            mine = sent if origin == first else _public(sent)
            with self._exchange(origin, where, mine) as response:
                if response.status not in _REDIRECTS or "location" not in response.headers:
                    _check_encoding(response)
                    yield response
                    return
                where = _redirected(where, response.headers["location"])
        raise WebError(f"{shown_url(url)} redirects more than {_MOST_REDIRECTS} times")

    @contextmanager
    def _exchange(self, origin: Origin, url: str, headers: Mapping[str, str]) -> Iterator[WebResponse]:
        connection, response = self._ask(origin, url, headers)
        answer = WebResponse(url, response)
        try:
            yield answer
        finally:
            ended = answer.ended
            response.close()
            if ended:
                self._connections.give_back(origin, connection)
            else:
                connection.close()

    def _ask(
        self, origin: Origin, url: str, headers: Mapping[str, str]
    ) -> "tuple[http.client.HTTPConnection, http.client.HTTPResponse]":
        import http.client

        while True:
            used = False
            try:
                connection, used = self._connections.take(origin)
                try:
                    connection.request("GET", self._target(origin, url), headers=dict(headers))
                    return connection, connection.getresponse()
                except BaseException:
                    connection.close()
                    raise
            except (OSError, http.client.HTTPException, ValueError) as error:
                if used:  # The server closed it meanwhile; the next one is new, or used as well and tried likewise.
                    continue
                raise WebError(f"{shown_url(url)} does not answer: {type(error).__name__}: {error}") from None

    def _target(self, origin: Origin, url: str) -> str:
        target = target_of(url)
        return f"{origin}{target}" if self._connections.uses_proxy(origin) else target


def _redirected(url: str, location: str) -> str:
    target = join(url, location)
    if url.startswith("https:") and not target.startswith("https:"):
        raise InvalidArgumentError(
            f"{shown_url(url)} redirects to {shown_url(target)}, which is not https; that is not followed"
        )
    origin_of(target)
    return target


def _public(headers: Mapping[str, str]) -> dict[str, str]:
    """What another origin may see."""
    return {
        name: value for name, value in headers.items() if name in ("Accept", "Accept-Encoding", "Range", "User-Agent")
    }


def _check_encoding(response: WebResponse) -> None:
    encoding = response.headers.get("content-encoding", "identity")
    if encoding.lower() not in ("", "identity"):
        raise WebError(
            f"{shown_url(response.url)} answered with the encoding {encoding[:20]!r} although none was accepted; "
            "nothing is decompressed on the way",
            response.status,
        )


def _check_headers(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        if not _HEADER_VALUE.fullmatch(value):
            raise InvalidArgumentError(f"the header {name} holds a character that no header can hold")
