"""Connections to checked addresses, kept open for the next request."""

import contextlib
import http.client
import os
import socket
import ssl
import threading
import urllib.request
from typing import Any, Final

from repoagent.errors import InvalidArgumentError
from repoagent.web.hosts import Hosts
from repoagent.web.urls import Origin, origin_of

__all__ = ["Connections"]

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

    def take(self, origin: Origin) -> tuple[http.client.HTTPConnection, bool]:
        """A connection to ``origin``, and whether it was used before: the server may have closed it by now.

        Raises:
            InvalidArgumentError: the host may not be asked.
            OSError: it does not answer.
        """
        with self._lock:
            for index in range(len(self._idle) - 1, -1, -1):
                if self._idle[index][0] == origin:
                    return self._idle.pop(index)[1], True
        return self._open(origin), False

    def give_back(self, origin: Origin, connection: http.client.HTTPConnection) -> None:
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

    def _open(self, origin: Origin) -> http.client.HTTPConnection:
        proxy = self._proxy(origin)
        if proxy is None:
            return self._connected(origin, self._socket(origin, self._hosts))
        self._hosts.check_literal(origin)
        # The proxy is the operator's choice, wherever it is.
        sock = self._socket(proxy, self._hosts.with_origin(proxy))
        return self._connected(origin, sock, tunnel=origin.scheme == "https")

    def _connected(self, origin: Origin, sock: socket.socket, *, tunnel: bool = False) -> http.client.HTTPConnection:
        connection: Any = http.client.HTTPConnection(origin.host, origin.port, timeout=self._timeout)
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

    def _context(self) -> ssl.SSLContext:
        with self._lock:
            if self._tls is None:
                self._tls = ssl.create_default_context(cafile=os.environ.get("REPOAGENT_CA_FILE") or None)
            return self._tls

    def _proxy(self, origin: Origin) -> Origin | None:
        url = urllib.request.getproxies().get(origin.scheme)
        if not url or urllib.request.proxy_bypass(f"{origin.host}:{origin.port}"):
            return None
        proxy = origin_of(url if "://" in url else f"http://{url}")
        if proxy.scheme != "http":
            raise InvalidArgumentError(f"the proxy {proxy} has to be spoken to over https, which is not supported")
        return proxy
