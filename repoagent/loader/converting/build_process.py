"""Running a converter in a process of its own: progress out of it, an end to it, and what it died of."""

import contextlib
import importlib.util
import logging
import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from repoagent.api.converters import Product, Progressing
from repoagent.errors import CancelledError, InternalError, UnsupportedError, signal_name
from repoagent.limits import Limits
from repoagent.loader.converting.messages import LINE_BYTES, BuildOrder, FailureEvent, ProgressEvent, one_line, parse
from repoagent.programs import child_environment, without_secrets

logger = logging.getLogger("repoagent.loader")

_TICK_SECONDS: Final = 0.05
_CHUNK: Final = 1 << 16
_MOST_THREADS: Final = 4096
_TAIL_BYTES: Final = 1 << 14
_TAIL_LINES: Final = 10
_TAIL_CHARACTERS: Final = 2000
_KEPT: Final = ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TZ")
_THREADS: Final = ("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def build_in_child(
    order: BuildOrder,
    scratch: Path,
    label: str,
    *,
    progress: Progressing,
    cancelled: Callable[[], bool],
    seconds: int = 0,
) -> Product:
    """Build what ``order`` states in a new process, which ends with this one, and with the load.

    It works in ``scratch``, an empty directory of this load. ``label`` is what messages call the converter.
    ``cancelled`` is asked twenty times a second; true kills the process with all that it started, as does the end of
    ``seconds`` (0: no limit). ``progress`` is called on this thread.

    Raises ``CancelledError``, what the converter raised, or ``InternalError`` if it ended without a result or took too
    long.
    """
    read_end, write_end = os.pipe()
    with open(read_end, "rb", buffering=0) as events:
        try:
            process = _start(order, scratch, label, write_end)
        finally:
            os.close(write_end)
        with process, _group_ends(process):
            return _Watch(process, events.fileno(), label, progress, cancelled, seconds).result()


@contextlib.contextmanager
def _group_ends(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Kill whatever is left of the group, before the process is collected: until then its number is no one else's."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _start(order: BuildOrder, scratch: Path, label: str, write_end: int) -> "subprocess.Popen[bytes]":
    if not sys.executable:
        raise UnsupportedError(f"{label} needs a Python interpreter for its process, and sys.executable names none")
    file = scratch / "order.json"
    file.write_text(order.to_json(), encoding="utf-8")
    python = f"{order.environment}/bin/python" if order.environment else sys.executable
    command = [python, "-P", "-m", "repoagent.loader.converting.build_child", str(write_end), str(os.getpid())]
    try:
        with file.open("rb") as ordered:
            return subprocess.Popen(  # noqa: S603 - no shell is involved
                command,
                stdin=ordered,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(write_end,),
                cwd=scratch,
                env=_environment(order, scratch),
                start_new_session=True,
            )
    except OSError as error:
        raise InternalError(f"{label} cannot be started: {error.strerror or error}") from error


def _environment(order: BuildOrder, scratch: Path) -> dict[str, str]:
    if order.environment:
        path = str(_linked_modules(order.converter, scratch))
    else:
        # The same modules are found, in the same order; a converter's package need not be installed.
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
    # Libraries keep caches and databases in the home directory: those of a build go with it.
    places = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), str(scratch))
    added = {**places, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    if not order.jail_bytes:
        return child_environment(added)
    # Foreign code finds nothing of the server's environment, and libraries start no thread before the jail.
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return without_secrets(kept) | added | dict.fromkeys(_THREADS, "1")


def _linked_modules(converter: str, scratch: Path) -> Path:
    """A directory with only this package, and the one that the converter is in: the rest is the environment's."""
    links = scratch / "modules"
    links.mkdir()
    for name in {"repoagent", converter.partition(":")[0].partition(".")[0]}:
        found = importlib.util.find_spec(name)
        places = [*(found.submodule_search_locations or [found.origin or ""])] if found is not None else [""]
        if not places[0]:
            raise InternalError(f"the module {name} of the converter is not in a file")
        place = Path(places[0])
        (links / place.name).symlink_to(place)
    return links


def took_too_long(label: str, seconds: int) -> InternalError:
    """Why a build was ended after so many ``seconds``."""
    flag = Limits.flag("build_seconds")
    return InternalError(
        f"{label} was ended: it took more than {seconds} s. Raise {flag} if it needs longer (0 for no limit)"
    )


class _Watch:
    """Reads what a process writes until it ends."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        events: int,
        label: str,
        progress: Progressing,
        cancelled: Callable[[], bool],
        seconds: int,
    ) -> None:
        self._process = process
        self._label = label
        self._progress = progress
        self._cancelled = cancelled
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds if seconds else math.inf
        self._line = b""
        self._tail = b""
        self._end: Product | FailureEvent | None = None
        assert process.stdout is not None
        self._readers = {events: self._take_events, process.stdout.fileno(): self._take_output}

    def result(self) -> Product:
        """What the process built."""
        self._read()
        status = self._wait()
        if isinstance(self._end, FailureEvent):
            if self._end.trace:
                logger.error("%s failed unexpectedly:\n%s", self._label, self._end.trace)
            raise self._end.error
        if self._end is None or status != 0:
            raise InternalError(self._death(status))
        return self._end

    def _read(self) -> None:
        with selectors.DefaultSelector() as selector:
            for fd in self._readers:
                os.set_blocking(fd, False)
                selector.register(fd, selectors.EVENT_READ)
            # What a process leaves behind may hold the other ends open: its own end is the end.
            while selector.get_map():
                self._check()
                ended = self._status() is not None  # asked first: what it wrote before is then read
                ready = selector.select(0 if ended else _TICK_SECONDS)
                for key, _ in ready:
                    if not self._take(key.fd):
                        selector.unregister(key.fd)
                if ended and not ready:
                    return

    def _take(self, fd: int) -> bool:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return True
        self._readers[fd](data)
        return bool(data)

    def _take_output(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-_TAIL_BYTES:]

    def _take_events(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        if len(self._line) > LINE_BYTES:
            raise InternalError(f"{self._label} reports more than {LINE_BYTES} bytes at once")
        for line in lines:
            try:
                event = parse(line)
            except ValueError as error:
                raise InternalError(f"{self._label}: {error}") from error
            if isinstance(event, ProgressEvent):
                self._progress(event.done, event.total, event.what)
            else:
                self._end = event

    def _wait(self) -> int:
        while (status := self._status()) is None:
            self._check()
            time.sleep(_TICK_SECONDS)
        return status

    def _status(self) -> int | None:
        """How the process ended, as :attr:`subprocess.Popen.returncode`; None if it has not. It is not collected."""
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def _check(self) -> None:
        if self._cancelled():
            raise CancelledError(f"{self._label} was ended: the load was cancelled")
        if time.monotonic() >= self._deadline:
            raise took_too_long(self._label, self._seconds)
        # A limit of the user's processes does not hold root, and would count those of others.
        if os.stat(f"/proc/{self._process.pid}/task").st_nlink - 2 > _MOST_THREADS:
            raise InternalError(f"{self._label} was ended: it has more than {_MOST_THREADS} threads")

    def _death(self, status: int) -> str:
        if status == -signal.SIGKILL:
            how = "was killed, as the system does where memory runs out"
        elif status < 0:
            how = f"crashed with {signal_name(-status)}"
        else:
            how = f"ended with status {status} and without a result"
        lines = self._tail.decode(errors="replace").strip().splitlines()[-_TAIL_LINES:]
        last = one_line(" | ".join(line.strip() for line in lines), _TAIL_CHARACTERS)
        return f"{self._label} {how}: {last}" if last else f"{self._label} {how}"
