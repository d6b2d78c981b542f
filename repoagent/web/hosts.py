"""Which hosts may be asked.

A model, a registry or a redirect can name any address, and the machine of the server reaches more of them than their
author: services on loopback, the private network, the metadata service of the cloud. Public addresses are free, others
must have been named by the operator. The metadata service can never be named.
"""

import ipaddress
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from repoagent.errors import InvalidArgumentError, UnavailableError
from repoagent.web.urls import Origin

HOSTS_VARIABLE: Final = "REPOAGENT_FETCH_HOSTS"
"""Names the hosts and networks that are not public and may be asked, separated by commas."""

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_METADATA: Final = frozenset({"fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "192.0.0.192", "168.63.129.16"})
_EMBEDDING: Final = tuple(
    (ipaddress.IPv6Network(network), shift)
    for network, shift in (
        ("::ffff:0:0/96", 0),  # IPv4-mapped
        ("::ffff:0:0:0/96", 0),  # IPv4-translated (SIIT)
        ("::/96", 0),  # IPv4-compatible
        ("64:ff9b::/96", 0),  # NAT64
        ("2002::/16", 80),  # 6to4
    )
)
"""Networks whose addresses stand for the IPv4 address in the bits from ``shift`` on."""
_PREFIXED: Final = (0x0000_5EFE, 0x0200_5EFE)
"""ISATAP: what precedes an IPv4 address in the second half of an IPv6 address."""
_LOCAL_NAT64: Final = ipaddress.IPv6Network("64:ff9b:1::/48")
_NOT_PUBLIC: Final = (_LOCAL_NAT64, *map(ipaddress.IPv6Network, ("fec0::/10", "3fff::/20", "5f00::/16")))
"""Networks of one site, of documents and of routers, which the standard library counts as public."""
_LOW: Final = 0xFFFF_FFFF


class Hosts:
    """A rule for addresses. Immutable."""

    def __init__(self, named: Iterable[str] = ()) -> None:
        """Allow public hosts, and what is ``named``: ``host``, ``host:port``, or a network as ``10.0.0.0/8``; raises
        ``InvalidArgumentError`` for a network that cannot be read."""
        entries = [entry.strip().lower() for entry in named if entry.strip()]
        self._entries: Final = tuple(entries)
        self._networks: Final = tuple(_network(entry) for entry in entries if "/" in entry)
        self._names: Final = frozenset(entry for entry in entries if "/" not in entry)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Hosts":
        """What the operator names in ``REPOAGENT_FETCH_HOSTS``."""
        return cls(environment.get(HOSTS_VARIABLE, "").split(","))

    def with_origin(self, origin: Origin) -> "Hosts":
        """The same rule, and ``origin``: it was the operator who named it."""
        return Hosts([*self._entries, f"{origin.host}:{origin.port}"])

    def addresses(self, origin: Origin) -> list[tuple[int, tuple[object, ...]]]:
        """Family and socket address of each address of ``origin``, all of them allowed.

        Connect to one of these: a second look at the name could give another answer. Raises ``InvalidArgumentError`` if
        one may not be asked, and ``UnavailableError`` if the name has none.
        """
        try:
            found = socket.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise UnavailableError(f"the host {origin.host} has no address: {error}") from None
        for *_, address in found:
            self.check(origin, str(address[0]))
        return [(family, address) for family, _, _, _, address in found]

    def check_literal(self, origin: Origin) -> None:
        """Check a host that is an address, for a proxy that finds the others itself. Errors as in :meth:`addresses`."""
        try:
            ipaddress.ip_address(origin.host)
        except ValueError:
            if origin.host == "localhost" or origin.host.endswith(".localhost"):
                self.check(origin, "127.0.0.1")
            return
        self.check(origin, origin.host)

    def check(self, origin: Origin, address: str) -> None:
        """Check one address of ``origin``. Errors as in :meth:`addresses`."""
        for real in _meanings(ipaddress.ip_address(address.partition("%")[0])):
            self._check_one(origin, real)

    def _check_one(self, origin: Origin, real: _Address) -> None:
        if real.is_link_local or str(real) in _METADATA or real.is_multicast or real.is_unspecified:
            raise InvalidArgumentError(
                f"{origin} leads to {real}, an address of the machine's own services (such as cloud metadata); "
                "it is never asked"
            )
        if (real.is_global and not any(real in network for network in _NOT_PUBLIC)) or self._is_named(origin, real):
            return
        raise InvalidArgumentError(
            f"{origin} leads to {real}, which is not a public address; if it may be asked, the operator names "
            f"{origin.host}:{origin.port} or its network in {HOSTS_VARIABLE}"
        )

    def _is_named(self, origin: Origin, address: _Address) -> bool:
        if origin.host in self._names or f"{origin.host}:{origin.port}" in self._names:
            return True
        return any(address in network for network in self._networks)


def _meanings(address: _Address) -> Iterator[_Address]:
    """The addresses at which a packet to ``address`` may arrive: tunnels and translators unwrap what is in it."""
    number = int(address)
    if isinstance(address, ipaddress.IPv4Address) or number <= 1:
        yield address
        return
    for network, shift in _EMBEDDING:
        if address in network:
            yield ipaddress.IPv4Address(number >> shift & _LOW)
            return
    yield address
    if address.teredo:
        yield from address.teredo
    elif address in _LOCAL_NAT64:
        # Operators choose how much of the network is their prefix; with /48, a byte lies in the middle of the address.
        found = number & _LOW, (number >> 64 & 0xFFFF) << 16 | number >> 40 & 0xFFFF
        yield from map(ipaddress.IPv4Address, filter(None, found))
    elif number >> 32 & _LOW in _PREFIXED:
        yield ipaddress.IPv4Address(number & _LOW)


def _network(text: str) -> _Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise InvalidArgumentError(f"{HOSTS_VARIABLE}: {text!r} is not a valid network; expected 10.0.0.0/8") from None
