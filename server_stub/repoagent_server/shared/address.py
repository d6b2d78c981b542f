"""Where a connection comes from, for logs."""

import asyncio
from typing import Any

_LOCAL = "unix"


def address_of(transport: asyncio.BaseTransport) -> str:
    """``10.0.0.7:51234``, ``[::1]:51234``, or ``unix``; empty if the connection is gone already."""
    return shown(transport.get_extra_info("peername"))


def shown(peer: Any) -> str:
    """The same for what the system, or ASGI, calls the other end: host and port, and more for IPv6."""
    if isinstance(peer, str | bytes):
        return _LOCAL
    if not peer:
        return ""
    host, port = str(peer[0]), peer[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
