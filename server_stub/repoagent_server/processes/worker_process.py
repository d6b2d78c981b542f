"""The process of a worker: how it starts, what it inherits, how it ends."""

import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from repoagent.programs import child_environment
from repoagent_server.processes.calls import Calls
from repoagent_server.processes.user import WorkerUser

logger = logging.getLogger(__name__)

Listeners = Mapping[tuple[str, int], Sequence[socket.socket]]
"""Address and port -> the socket of each worker."""

_LAST_SECONDS: Final = 5.0
_LONG_LIFE_SECONDS: Final = 60.0
_SLOWEST_RESTART_SECONDS: Final = 30.0
_KEPT: Final = frozenset(
    {"CUDA_VISIBLE_DEVICES", "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PYTHONHOME"}
    | {"PYTHONPATH", "PYTHONUNBUFFERED", "REPOAGENT_STARTED_BY", "SHELL", "TERM", "TMPDIR", "TZ", "USER"}
    | {"VIRTUAL_ENV"}
)
_KEPT_PREFIXES: Final = ("CUDA_", "KMP_", "LC_", "MKL_", "NVIDIA_", "OMP_", "OPENBLAS_", "ORT_", "TENSORRT_")
"""What a worker inherits of the keeper's environment, which may hold keys."""


class WorkerProcess:
    """Number ``index``: a process, or the place of one that has died.

    It runs the module ``program`` and has its sockets of ``listeners``; as ``user``, None for that of this process.
    """

    def __init__(self, index: int, program: str, listeners: Listeners, user: WorkerUser | None = None) -> None:
        self.index = index
        self.calls: Calls | None = None
        """None while there is no process."""
        self.ended = threading.Event()
        """Set while there is no process any more."""
        self.serves = False
        """Whether it has what the others have: until then it is not asked about that."""
        self._program = program
        self._user = user
        self._listeners = {address: sockets[index] for address, sockets in listeners.items()}
        self._process: subprocess.Popen[bytes] | None = None
        self._news: socket.socket | None = None
        self._started = 0.0
        self._failures = 0

    def launch(
        self, options: str, answers: Mapping[str, Callable[..., Any]], on_end: Callable[[str], None]
    ) -> "Future[Any]":
        """Start the process; the result is there when it has started.

        Raises:
            OSError: there is no memory, or no process, left; or its user may not run this interpreter.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        news, their_news = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if self._news is not None:
            self._news.close()
        self._news, inherited = news, their_news.fileno()
        environment = {
            name: value
            for name, value in child_environment().items()
            if name in _KEPT or name.startswith(_KEPT_PREFIXES)
        }
        environment |= self._user.environment if self._user is not None else {}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter
                [sys.executable, "-P", "-m", self._program, str(theirs.fileno())],
                pass_fds=[theirs.fileno(), their_news.fileno(), *(one.fileno() for one in self._listeners.values())],
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
                **(self._user.start if self._user is not None else {}),
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            their_news.close()
        self._started = time.monotonic()
        self.ended.clear()
        self.calls = Calls(ours, answers, on_end, f"worker {self.index}")
        self.calls.start()
        listeners = [[address, port, listener.fileno()] for (address, port), listener in self._listeners.items()]
        return self.calls.begin("start", options, listeners, inherited, self.index)

    def link(self, other: "WorkerProcess") -> None:
        """Give this worker and ``other`` a socket to each other."""
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            for one, end, number in zip((self, other), ends, (other.index, self.index), strict=True):
                if one._news is not None:
                    socket.send_fds(one._news, [str(number).encode()], [end.fileno()], socket.MSG_DONTWAIT)
        except OSError as error:  # One of them has just ended, or hangs.
            logger.warning("workers %d and %d have no way to each other: %s", self.index, other.index, error)
        finally:
            for end in ends:
                end.close()

    def hang_up(self) -> None:
        """Have it open its logs again."""
        if self.serves and self._process is not None:
            self._process.send_signal(signal.SIGHUP)

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()

    def wait(self) -> str:
        """Return once it has ended, which it is to do by itself: how it ended."""
        news, self._news = self._news, None
        if news is not None:
            news.close()
        if self._process is None:
            return "never started"
        try:
            status = self._process.wait(_LAST_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        return f"signal {-status}" if status < 0 else f"status {status}"

    def pause(self) -> float:
        """Seconds until another process takes its place: more if those before have died soon, too."""
        soon = time.monotonic() - self._started < _LONG_LIFE_SECONDS
        self._failures = self._failures + 1 if soon else 0
        return min(0.25 * 2 ** (self._failures - 1), _SLOWEST_RESTART_SECONDS) if self._failures > 1 else 0.0
