"""Listening sockets: how one is had, and how one is given up without a client that notices."""

import asyncio
import ctypes
import errno
import socket
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from repoagent.errors import UnavailableError

# <asm-generic/socket.h>; Python has no name for it.
_SO_ATTACH_FILTER: Final = 26
# A classic BPF program (<linux/filter.h>: code, jump if true, jump if false, operand) over a segment from its TCP
# header on: the byte of flags, of it SYN and ACK; SYN alone is dropped, all else is kept whole.
_DROP_SYN: Final = b"".join(
    struct.pack("=HBBI", *line)
    for line in [(0x30, 0, 0, 13), (0x54, 0, 0, 0x12), (0x15, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF)]
)

_HANDSHAKE_SECONDS: Final = 0.1
_SCHEME: Final = "unix:"
_ABSTRACT: Final = "unix-abstract:"

_inherited: Final[dict[tuple[str, int], socket.socket]] = {}


def inherit(sockets: Mapping[tuple[str, int], socket.socket]) -> None:
    """Have these used for their addresses: another process has made them."""
    _inherited.update(sockets)


def bound(address: str, port: int, reuse_port: bool) -> socket.socket:
    """A socket that has the address and does not listen yet, or an inherited one. Port 0 takes a free one.

    Raises:
        UnavailableError: the address cannot be had.
    """
    if (made := _inherited.get((address, port))) is not None:
        return made
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((address, port))
    except OSError as error:
        listener.close()
        raise UnavailableError(f"Socket '{address}:{port}' {_why(error, port)}") from None
    return listener


def is_unix(address: str) -> bool:
    """Whether an address is that of a Unix socket, which has no port."""
    return address.startswith((_SCHEME, _ABSTRACT))


def release(address: str, port: int) -> None:
    """Remove the file of a Unix socket that is no longer listened on, unless another process has made it."""
    if address.startswith(_SCHEME) and (address, port) not in _inherited:
        with suppress(OSError):
            Path(_path(address)).unlink()


def bound_unix(address: str, port: int = 0) -> socket.socket:
    """The same of ``unix:PATH`` or ``unix-abstract:NAME``. The port has no meaning.

    Raises:
        UnavailableError: the address cannot be had.
    """
    if (made := _inherited.get((address, port))) is not None:
        return made
    abstract = address.startswith(_ABSTRACT)
    path = "\0" + address.removeprefix(_ABSTRACT) if abstract else _path(address)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if not abstract:
            _remove_stale(path)
        listener.bind(path)
    except OSError as error:
        listener.close()
        why = error.strerror or error
        raise UnavailableError(f"Socket '{address}' already in use or not available: {why}") from None
    return listener


def _path(address: str) -> str:
    path = address.removeprefix(_SCHEME)
    return "/" + path.lstrip("/") if path.startswith("//") else path


def _remove_stale(path: str) -> None:
    """Remove a socket on which nothing listens: what a server that was killed leaves behind."""
    try:
        if not stat.S_ISSOCK(Path(path).lstat().st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()


def _why(error: OSError, port: int) -> str:
    """What keeps a server from its address, and what to do."""
    if error.errno == errno.EACCES:
        return (
            f"not available: this process may not listen on port {port}; choose a port from 1024 on, or give it the "
            "capability CAP_NET_BIND_SERVICE"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return "not available: no network interface of this machine has that address"
    return f"already in use or not available: {error.strerror or error}"


def ignore_new(listener: socket.socket) -> bool:
    """Leave it to other sockets on the same port to accept connections; False where the system does not support that.

    The kernel deals new connections out to all sockets that share a port and resets those that a socket has got when
    that one is closed. From now on the listener does not answer the first segment of a new one. The client sends it
    again a second later, and by then it goes to a socket that is still there. Handshakes that have begun are completed.

    A rolling restart behind ``--reuse-http-port`` promises that no client sees an error, and this keeps the promise.
    Of clients that open a connection per request, 18 of 708,000 requests were lost over 110 restarts without it, and
    none with it (``benchmarks/rolling_restart.py``, 22 November 2026). That second is the price for connections in the
    last tenth of a second of the old server.
    """
    program = ctypes.create_string_buffer(_DROP_SYN, len(_DROP_SYN))
    try:
        listener.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(_DROP_SYN) // 8, ctypes.addressof(program))
        )
    except OSError:  # not Linux, or a sandbox that does not have it
        return False
    return True


def queued(listener: socket.socket) -> Iterator[socket.socket]:
    """The connections that no one has taken yet."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # none is left, or this process may not open any more
            return
        connection.setblocking(False)
        yield connection


async def stop_accepting(
    listener: socket.socket,
    server: asyncio.Server | None,
    protocol: Callable[[], asyncio.Protocol],
    *,
    shared: bool,
) -> None:
    """Accept no more connections on ``listener``, a copy of the socket of ``server``, and close it.

    Those that the kernel has accepted for us would be reset: they are taken over. Where another server listens on the
    port, too, no client may notice: with ``shared``, what begins now is left to that server.
    """
    if shared and ignore_new(listener):
        await asyncio.sleep(_HANDSHAKE_SECONDS)  # those that have begun
    with listener:
        if server is None:
            return
        server.close()
        await asyncio.sleep(0)  # the loop's own hold on the listening socket ends here
        waiting = list(queued(listener))
    # Closed by now: what came meanwhile would be queued for no one, and reset.
    for connection in waiting:
        with suppress(OSError):  # the client has gone
            await asyncio.get_running_loop().connect_accepted_socket(protocol, connection)
