"""A file somewhere else, and how to recognise it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from repoagent.storage.repositories.fingerprint import FileEntry
from repoagent.storage.transfer.streams import Opener, fsspec_opener, web_opener
from repoagent.web import Hosts, WebClient, origin_of

__all__ = ["RemoteFile", "remote_files"]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file to bring here.

    ``path`` is where it goes, relative; ``name`` is for messages, without credentials. ``digest`` is what it must
    have, as ``sha256:HEX``, ``sha512:HEX`` or ``git-sha1:HEX``, or empty. ``key`` names it where its digest does not:
    equal keys with equal sizes and tags are one file; empty: nothing is remembered.
    """

    path: str
    name: str
    open: Opener
    size: int | None = None
    tag: str = ""
    digest: str = ""
    key: str = ""


def remote_files(fs: Any, location: str, entries: Iterable[FileEntry]) -> Iterator[RemoteFile]:
    """The files of a listing of ``fs``, which ``location`` names for messages."""
    client = _web_client(fs, location)
    for entry in entries:
        opener = fsspec_opener(fs, entry.name, entry.size) if client is None else web_opener(client, entry.name)
        # A memory filesystem's clock is no tag: equal ones must mean equal content, in another process too.
        key = f"{location}\n{entry.path}" if entry.tag and "memory" not in fs.protocol else ""
        yield RemoteFile(entry.path, entry.name, opener, entry.size, entry.tag, key=key)


def _web_client(fs: Any, location: str) -> WebClient | None:
    """A client of our own for plain web servers: fsspec's takes ranges for granted, or reads without any."""
    if "http" not in fs.protocol or not location.startswith(("http://", "https://")):
        return None
    options = fs.client_kwargs
    if fs.kwargs or set(options) > {"timeout"}:  # Credentials, or other ways: only fsspec's client knows them.
        return None
    timeout = options["timeout"].sock_read if "timeout" in options else 15.0
    return WebClient(Hosts.from_environment().with_origin(origin_of(location)), timeout=timeout or 15.0)
