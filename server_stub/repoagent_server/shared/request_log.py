"""The request log: one line of JSON for each inference request, written by a thread that no request waits for."""

import logging
import os
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Final, NamedTuple

from repoagent.errors import UnavailableError
from repoagent.serving.measuring.prometheus import Family
from repoagent.serving.requests.request import Asked, InferResponse

logger = logging.getLogger(__name__)

_QUIET_SECONDS: Final = 60.0
_GATHER_SECONDS: Final = 0.05
_CLOSING_SECONDS: Final = 5.0
_WAITING: Final = 1 << 16
_BATCH: Final = 2048
_LONGEST: Final = 512
_INFERS: Final = ("/ModelInfer", "/ModelStreamInfer")
_OPEN: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class Entry(NamedTuple):
    """One request that has been answered."""

    began_ns: int
    """``time.time_ns()`` when it had been read."""
    took_ns: int
    client: str
    model: str
    version: str
    protocol: str
    status: int
    bytes_in: int
    bytes_out: int
    request: str
    tokens: tuple[int, int] | None = None
    """Those that a language model has read and made, where the answer states them."""


class RequestLog:
    """Takes entries from any thread. Close it at the end.

    At most 65,536 entries wait. More are dropped and counted, as are those that cannot be written.

    Args:
        path: Where lines are appended; None is the standard error.

    Raises:
        UnavailableError: the file cannot be opened.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._fd = -1
        self._waiting: deque[Entry] = deque()
        self._wake = threading.Event()
        self._sleeping = True
        self._closed = False
        self._reopen = False
        self._torn = False
        self._complained = -_QUIET_SECONDS
        self._counting = threading.Lock()
        self._turned_away = 0
        self._lost = 0
        self.lines = 0
        """How many lines have been written."""
        try:
            self._fd = self._opened()
        except OSError as error:
            raise UnavailableError(f"the request log {path} cannot be opened: {error.strerror}") from error
        self._thread = threading.Thread(target=self._run, name="repoagent-request-log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """How many requests have no line."""
        return self._turned_away + self._lost

    def put(self, entry: Entry) -> None:
        """Take an entry; never waits."""
        if len(self._waiting) >= _WAITING or self._closed:
            with self._counting:
                self._turned_away += 1
            return
        self._waiting.append(entry)
        if self._sleeping:
            self._sleeping = False
            self._wake.set()

    def reopen(self) -> None:
        """Go on in a new file if this one has been renamed, with the next line. Takes no lock."""
        self._reopen = True

    def close(self) -> None:
        """Write what waits and end the thread. Twice is once."""
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        self._thread.join(_CLOSING_SECONDS)
        if self._thread.is_alive():  # what it writes to takes nothing: a pipe that no one reads
            self._lost += len(self._waiting)
        elif self._path is not None:
            os.close(self._fd)
        if self.dropped:
            logger.warning("the request log lacks %d requests", self.dropped)

    # -- on the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait()
            self._wake.clear()
            if not self._closed:
                time.sleep(_GATHER_SECONDS)  # many lines with one write
            self._drain()
            self._sleeping = True
            if self._waiting:  # came in between, and found this thread awake
                self._wake.set()
        self._drain()

    def _drain(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            try:
                if self._reopen or self._is_removed():
                    self._reopen = False
                    self._take_new_file()
                self._write("".join(map(_line, batch)).encode("ascii"))
            except OSError as error:
                self._lost += len(batch)
                self._complain(error)
            else:
                self.lines += len(batch)

    def _write(self, data: bytes) -> None:
        left = memoryview(b"\n" + data if self._torn else data)
        self._torn = False
        while left:
            written = os.write(self._fd, left)
            left = left[written:]
            self._torn = bool(left)  # stays so if the next write fails: then the next line begins on a new one

    def _opened(self) -> int:
        return sys.__stderr__.fileno() if self._path is None else os.open(self._path, _OPEN, 0o600)  # type: ignore[union-attr]

    def _is_removed(self) -> bool:
        status = os.fstat(self._fd)
        if status.st_nlink or not stat.S_ISREG(status.st_mode):
            return False
        logger.warning("the request log %s was removed under this server; it goes on in a new file", self._path)
        return True

    def _take_new_file(self) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        former, self._fd = self._fd, self._opened()
        os.close(former)
        self._torn = False

    def _complain(self, error: OSError) -> None:
        now = time.monotonic()
        if now - self._complained >= _QUIET_SECONDS:
            self._complained = now
            where = self._path or "on the standard error"
            logger.error("the request log %s cannot be written: %s (%d dropped)", where, error.strerror, self.dropped)


class RunningRequest:
    """What the log gets of one request, as far as it is known until that has been answered: HTTP's and gRPC's.

    ``size`` is that of its message, ``client`` the name of who asks, ``request`` the id in the headers of its call.
    """

    __slots__ = (
        "_began", "_began_ns", "client", "model", "protocol", "request", "size", "status", "tokens", "version",
    )  # fmt: skip

    def __init__(self, size: int, client: str = "", request: str = "", protocol: str = "grpc") -> None:
        self._began_ns = time.time_ns()
        self._began = time.perf_counter_ns()
        self.size = size
        self.client = client
        self.model = self.version = ""
        self.request = request
        self.protocol = protocol
        self.status = 0
        self.tokens: tuple[int, int] | None = None

    def asks(self, asked: Asked) -> None:
        """It has been read."""
        self.model, self.version = asked.model_name, asked.model_version
        self.request = self.request or asked.id

    def served(self, response: InferResponse) -> None:
        """A version has answered it."""
        self.model, self.version = response.model_name or self.model, response.model_version or self.version

    def end(self, log: RequestLog, sent: int) -> None:
        """It has been answered, with ``sent`` bytes: write its line."""
        entry = Entry(
            self._began_ns,
            time.perf_counter_ns() - self._began,
            self.client,
            self.model,
            self.version,
            self.protocol,
            self.status,
            self.size,
            sent,
            self.request,
            self.tokens,
        )
        log.put(entry)


def log_refused(log: RequestLog | None, method: str, status: int, request: str, client: str = "") -> None:
    """Write the line of a call that was not let in, if it is one of inference. ``method``: its path over gRPC."""
    if log is not None and method.endswith(_INFERS):
        refused = RunningRequest(0, client, request)
        refused.status = status
        refused.end(log, 0)


class RequestLogMetrics:
    """Metrics of a request log."""

    def __init__(self, log: RequestLog) -> None:
        self._log = log

    def families(self) -> Iterable[Family]:
        """Lines, and requests without one."""
        lines, dropped = "Lines written to the request log", "Requests without a line in the request log"
        return [
            Family("repoagent_request_log_lines_total", "counter", lines, [((), self._log.lines)]),
            Family("repoagent_request_log_dropped_total", "counter", dropped, [((), self._log.dropped)]),
        ]


_LINE: Final = (
    '{"time":"%s.%03dZ","client":%s,"model":%s,"version":%s,"protocol":"%s","status":%d,"milliseconds":%.3f,'
    '"bytes_in":%d,"bytes_out":%d,"request":%s%s}\n'
)
_TOKENS: Final = ',"tokens_in":%d,"tokens_out":%d'


def _line(entry: Entry) -> str:
    began, took, client, model, version, protocol, status, read, written, request, tokens = entry
    second, rest = divmod(began, 1_000_000_000)
    names = (_text(client), _text(model), _text(version), protocol)
    size = (read, written, _new_text(request), "" if tokens is None else _TOKENS % tokens)
    return _LINE % (_second(second), rest // 1_000_000, *names, status, took / 1e6, *size)


@lru_cache(maxsize=4)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _new_text(text: str) -> str:
    """As JSON, in ASCII: no text ends its line, or does anything to a terminal."""
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}... ({len(text)} characters)"
    return encode_basestring_ascii(text).replace("\x7f", "\\u007f")


@lru_cache(maxsize=1024)
def _known_text(text: str) -> str:
    return _new_text(text)


def _text(text: str) -> str:
    """The same for texts that come again and again."""
    return _known_text(text) if len(text) <= _LONGEST else _new_text(text)
