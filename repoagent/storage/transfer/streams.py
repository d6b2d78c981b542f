"""Remote files: reading one from any byte on, wherever it lies; its digests; what the files of one download share."""

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from repoagent.beneath.digests import Hasher, new_hasher
from repoagent.errors import CancelledError, InvalidArgumentError, UnavailableError
from repoagent.storage.repositories.listing import FileEntry
from repoagent.web import WebClient, WebError, WebResponse

_LENGTHS: Final = {"sha256": 64, "sha512": 128, "git-sha1": 40}


class WrongDigestError(InvalidArgumentError):
    """A file came, and it is not the one that was asked for."""


class Digester:
    """SHA-256, and the algorithm of an expected digest."""

    def __init__(self, expected: str, size: int) -> None:
        """Begin; ``size`` is that of the whole file, which git puts before it."""
        self._expected = expected
        algorithm = expected.partition(":")[0]
        names = {"sha256", algorithm} & _LENGTHS.keys()
        self._states: dict[str, Hasher] = {name: new_hasher(name, size) for name in names}

    def update(self, content: memoryview) -> None:
        """The next bytes."""
        for state in self._states.values():
            state.update(content)

    def sha256(self, name: str) -> str:
        """The SHA-256 of all, in hexadecimal; ``WrongDigestError`` if the file ``name`` has not the expected digest."""
        algorithm, _, expected = self._expected.partition(":")
        if expected and self._states[algorithm].hexdigest() != expected:
            found = self._states[algorithm].hexdigest()
            raise WrongDigestError(f"{name} has the digest {algorithm}:{found}; expected {self._expected}")
        return self._states["sha256"].hexdigest()


def check_digest(text: str, what: str) -> str:
    """``text`` if it is a digest, else ``InvalidArgumentError``; ``what`` states whose."""
    algorithm, _, digest = text.partition(":")
    if len(digest) != _LENGTHS.get(algorithm) or not re.fullmatch(r"[0-9a-f]*", digest):
        raise InvalidArgumentError(
            f"{what}: {text[:80]!r} is not a valid digest; expected sha256:, sha512: or git-sha1: and lower-case "
            "hexadecimal digits"
        )
    return text


class DownloadContext:
    """Requests at once, progress, and whether the download was given up. Thread-safe."""

    def __init__(
        self,
        workers: int,
        *,
        count: Callable[[int], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        """Allow ``workers`` requests at once; ``count`` gets the bytes that arrived, from many threads."""
        self.workers = workers
        self.count = count if count is not None else _ignore
        self.stop = threading.Event()
        self._cancelled = cancelled
        self._free = threading.BoundedSemaphore(workers)

    @property
    def over(self) -> bool:
        return self.stop.is_set() or (self._cancelled is not None and self._cancelled())

    def check(self) -> None:
        """Raise ``CancelledError`` once the download was given up."""
        if self.over:
            raise CancelledError("cancelled while copying the model")

    @contextmanager
    def one(self) -> Iterator[None]:
        """Be one of the requests, for a block."""
        while not self._free.acquire(timeout=0.1):
            self.check()
        try:
            self.check()
            yield
        finally:
            self._free.release()


def _ignore(size: int) -> None:
    """Nothing counts."""


SEGMENT: Final = 8 << 20
"""What is asked for at once: a lost connection costs at most this."""


class ChangedError(UnavailableError):
    """The file is not the one that was there when the download began."""


class ByteStream(Protocol):
    """Some bytes of a file, in order."""

    start: int
    """The first byte that comes: 0 where the server does not take ranges, whatever was asked for."""
    ranged: bool
    """Whether only the bytes that were asked for come; else all of the file does."""
    size: int | None
    """The size of the whole file, if the server reports it; always, if it takes ranges."""
    tag: str
    """Changes when the file does; empty if the server reports nothing."""
    may_tear: bool
    """Whether ranges may be of different contents, and no one could see it: ``open(0, 0)`` brings all at once."""

    def readinto(self, buffer: memoryview) -> int:
        """Read some bytes; 0 at the end, or where the connection broke."""


Opener = Callable[[int, int | None], AbstractContextManager[ByteStream]]
"""``open(start, end)``: the bytes from ``start`` up to ``end`` (not included; None: all that there are)."""


@dataclass(slots=True)
class _Bytes:
    """What came in one go."""

    content: memoryview
    start: int
    size: int | None
    ranged: bool = True
    tag: str = ""
    may_tear: bool = False
    position: int = field(default=0, init=False)

    def readinto(self, buffer: memoryview) -> int:
        piece = self.content[self.position : self.position + len(buffer)]
        buffer[: len(piece)] = piece
        self.position += len(piece)
        return len(piece)


@dataclass(slots=True)
class _File:
    """A file object of a filesystem that knows no ranges."""

    file: Any
    start: int = 0
    ranged: bool = False
    size: int | None = None
    tag: str = ""
    may_tear: bool = False

    def readinto(self, buffer: memoryview) -> int:
        piece = self.file.read(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)


def fsspec_opener(fs: Any, name: str, size: int | None) -> Opener:
    """Read the file ``name`` of any fsspec filesystem: in ranges, unless the store does not know its size."""
    known = size

    @contextmanager
    def open_(start: int, end: int | None) -> Iterator[ByteStream]:
        nonlocal known
        size = known = fs.size(name) if known is None else known
        if size is None:
            with fs.open(name, "rb") as file:
                yield _File(file)
            return
        stop = max(start, min(size, size if end is None else end, start + SEGMENT))
        # Of an empty file no range can be asked for.
        content = fs.cat_file(name, start=start, end=stop) if stop > start else b""
        if len(content) > stop - start:
            raise OSError(f"{len(content)} bytes came for the range {start}-{stop}")
        yield _Bytes(memoryview(content), start, size)

    return open_


def web_opener(client: WebClient, url: str, headers: Callable[[bool], Mapping[str, str]] = lambda _again: {}) -> Opener:
    """Read ``url`` in ranges where the server takes them.

    ``headers(again)`` are those of each request, such as a token; it is asked with True after a token was refused.
    """

    @contextmanager
    def open_(start: int, end: int | None) -> Iterator[ByteStream]:
        for again in (False, True):
            # An empty file has no byte 0, so that no range of it can be asked for.
            last = "" if end is None else end - 1
            wanted = {} if end == 0 else {"Range": f"bytes={start}-{last}"}
            with client.get(url, headers={**headers(again), **wanted}) as response:
                if response.status in (401, 403) and not again:
                    continue
                yield _WebStream(response, start)
                return

    return open_


def web_status(client: WebClient, url: str) -> tuple[int | None, str]:
    """The size and the tag of a file on a web server, as far as it reports them. Raises ``WebError`` or ``OSError``
    without an answer, or such a file."""
    with client.get(url, headers={"Range": "bytes=0-0"}) as response:
        stream = _WebStream(response, 0)
        return stream.size, stream.tag


class _WebStream:
    def __init__(self, response: WebResponse, start: int) -> None:
        self._response = response
        self.tag = response.headers.get("etag") or response.headers.get("last-modified") or ""
        self.start, self.size = _placed(response, start)
        self.ranged = response.status != 200
        self.may_tear = self.ranged and (not self.tag or self.tag.startswith("W/"))  # weak: not of every byte

    def readinto(self, buffer: memoryview) -> int:
        return self._response.readinto(buffer)


def _placed(response: WebResponse, start: int) -> tuple[int, int | None]:
    """Where the body begins, and the size of the whole."""
    if response.status == 206:
        return start, _total(response.headers.get("content-range", ""), start)
    if response.status == 200:
        length = response.headers.get("content-length", "")
        return 0, int(length) if length.isdecimal() and len(length) < 20 else None
    if response.status == 416 and start == 0 and response.headers.get("content-range", "").endswith("*/0"):
        return 0, 0
    if response.status == 416:
        raise ChangedError(f"the server has no byte {start} of it (any more)")
    if response.status in (404, 410):
        raise FileNotFoundError(f"the server has no such file (HTTP {response.status})")
    if response.status in (401, 403):
        raise PermissionError(f"the server refuses access (HTTP {response.status})")
    raise WebError(f"the server answers with HTTP {response.status}", response.status)


def _total(text: str, start: int) -> int:
    unit, _, rest = text.partition(" ")
    span, _, total = rest.partition("/")
    first = span.partition("-")[0]
    if unit != "bytes" or first != str(start) or not total.isdecimal() or len(total) > 19:
        raise WebError(f"the server answered with the range {text[:60]!r} to a request for bytes from {start} on", 206)
    return int(total)


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
    return WebClient.of_operator(location, timeout=timeout or 15.0)
