"""Who may ask through a browser: the names that a server answers to, and the pages whose requests change something.

A page of any site makes the browser that shows it send requests to this machine, and a site whose name resolves to
127.0.0.1 (DNS rebinding) even reads the answers. A browser sends in ``Host`` the name that it was given, and in
``Origin`` and ``Sec-Fetch-Site`` whose page asks; no page can change these.
"""

import ipaddress
import socket
from collections.abc import Sequence
from typing import Final

from repoagent_server.http.messages import Request

_FLAG: Final = "--http-allowed-host"
_ALL: Final = "*"
_LOCAL: Final = "localhost"
_READING: Final = frozenset({b"GET", b"HEAD"})
_KNOWN_HOSTS: Final = 256
_SHOWN: Final = 100
"""Characters of a header that are repeated to its sender."""


class Origins:
    """Decides about requests by the headers that browsers set.

    On a loopback address ``Host`` must be a name of this machine, an address, or one of ``names``. Elsewhere the
    operator chooses the names of a server: they are compared once ``names`` has some. A request that changes something
    is refused if a page of another site sends it. Inference is refused so on loopback only. ``*`` among the names
    turns all of it off.
    """

    def __init__(self, address: str, names: Sequence[str] = ()) -> None:
        own = (_LOCAL, socket.gethostname())
        self._names = frozenset(_canonical(name) for name in (*own, *names))
        self._off = _ALL in names
        self._strict = is_loopback(address) or bool(names)
        self.known: set[bytes | None] = {None, b""}
        """Values of ``Host`` that have been admitted. Browsers never send an empty one. Look here first: a request that
        no page sends needs no more."""

    def refusal(self, request: Request, infers: bool) -> str | None:
        """Why ``request`` is not answered, which is inference if it ``infers``; None if it is."""
        frame = request.frame
        if frame.host not in self.known and not self._admits_host(frame.host):
            return _not_ours("host", frame.host)
        only_asks = request.method in _READING or (infers and not self._strict)
        if only_asks or self._off:
            return None
        if frame.origin is not None:
            return None if self._admits_origin(frame.origin, frame.host) else _not_ours("origin", frame.origin)
        return _not_ours("origin", frame.fetch_site) if frame.fetch_site == b"cross-site" else None

    def _admits_host(self, host: bytes | None) -> bool:
        text = (host or b"").decode("latin-1")
        if self._strict and not self._off:
            name = _host_of(text)
            if not self._is_own(name) and _address(name) is None:
                return False
        if len(self.known) < _KNOWN_HOSTS:
            self.known.add(host)
        return True

    def _admits_origin(self, origin: bytes, host: bytes | None) -> bool:
        """Whether a page is of this server, or of this machine."""
        scheme, found, rest = origin.decode("latin-1").lower().partition("://")
        if not found or scheme not in ("http", "https"):
            return False
        if rest.encode("latin-1") == (host or b"").lower():
            return True
        name = _host_of(rest)
        return self._is_own(name) or is_loopback(name)

    def _is_own(self, name: str) -> bool:
        return name in self._names or name.endswith(f".{_LOCAL}")  # which no one can have resolved elsewhere


def is_loopback(address: str) -> bool:
    """Whether ``address`` (a number, or a name that is always local) is reached from this machine alone."""
    number = _address(address)
    if number is None:
        return _canonical(address) == _LOCAL
    mapped = getattr(number, "ipv4_mapped", None)
    return (mapped or number).is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _host_of(text: str) -> str:
    """The host of ``host:port``, without the brackets of an IPv6 address; "" for what is neither."""
    if text.startswith("["):
        name, bracket, port = text[1:].partition("]")
        valid = bool(bracket) and (not port or port[0] == ":")
        port = port[1:]
    else:
        name, _, port = text.partition(":")
        valid = True
    return _canonical(name) if valid and (not port or (port.isascii() and port.isdigit())) else ""


def _canonical(name: str) -> str:
    return name.lower().removesuffix(".")


def _not_ours(header: str, value: bytes | None) -> str:
    shown = (value or b"").decode("latin-1")[:_SHOWN]
    return (
        f"the {header} of the request, '{shown}', is not one of this server: a page of another site may be asking "
        f"through a browser. If the name belongs to this server, its operator starts it with '{_FLAG}=NAME'"
    )
