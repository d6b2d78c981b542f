"""Where gRPC listens: addresses as grpcio takes them, as sockets."""

import contextlib
import socket
import stat
from pathlib import Path

from repoagent.errors import UnavailableError
from repoagent_server.http.listener import bound

__all__ = ["listening", "unlink"]

_SCHEME = "unix:"
_ABSTRACT = "unix-abstract:"


def listening(address: str, port: int, reuse_port: bool) -> socket.socket:
    """A socket that has the address and does not listen yet: ``host``, ``::1``, ``[::1]``, ``unix:PATH``.

    Raises:
        UnavailableError: the address cannot be had.
    """
    try:
        if address.startswith(_ABSTRACT):
            return _unix("\0" + address.removeprefix(_ABSTRACT))
        if address.startswith(_SCHEME):
            return _unix(_path(address))
        return bound(address.removeprefix("[").removesuffix("]"), port, reuse_port)
    except (OSError, UnavailableError) as error:
        where = address if address.startswith((_SCHEME, _ABSTRACT)) else f"{address}:{port}"
        raise UnavailableError(f"gRPC cannot listen on {where}: the address is in use or not ours") from error


def unlink(address: str) -> None:
    """Remove the file of a socket that is no longer listened on."""
    if address.startswith(_SCHEME):
        with contextlib.suppress(OSError):
            Path(_path(address)).unlink()


def _path(address: str) -> str:
    path = address.removeprefix(_SCHEME)
    return "/" + path.lstrip("/") if path.startswith("//") else path


def _unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if not path.startswith("\0"):
            _remove_stale(path)
        listener.bind(path)
    except OSError:
        listener.close()
        raise
    return listener


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
