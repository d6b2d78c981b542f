"""SIGINT and SIGTERM: the first is a request, the second ends the drain delay, the third the process. SIGHUP.

And the signal that goes the other way: systemd's watchdog (``WatchdogSec=``) restarts a service that does not report
itself in time.
"""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

logger: Final = logging.getLogger(__name__)
_HURRY: Final = 2
"""The signal that is not the first: its sender does not want to wait for balancers any more."""


class StopRequest:
    """Set when the program should stop; where the main thread rests until then, or until someone wakes it.

    It rests on a socket into which the interpreter writes a byte for each signal. On a lock it could rest forever: a
    signal that comes just before a thread begins to wait for a lock is looked at only once it has got it.
    """

    def __init__(self, prefix: bytes = b"") -> None:
        self._prefix = prefix
        self._inside, self._outside = socket.socketpair()
        self._outside.setblocking(False)
        self._count = 0
        self.made = False

    def fileno(self) -> int:
        """Where the interpreter writes."""
        return self._outside.fileno()

    def wake(self) -> None:
        """Have the main thread look; from any thread, at any time."""
        with suppress(OSError):  # it is awake as it is, or no one rests any more
            self._outside.send(b"\0")

    def rest(self) -> None:
        """Return once something may have happened."""
        self._inside.recv(4096)

    def wait(self) -> None:
        """Return once the program should stop."""
        while not self.made:
            self.rest()

    def pause(self, seconds: float) -> None:
        """Return after ``seconds``, or with a second signal."""
        end = time.monotonic() + seconds
        while self._count < _HURRY and (left := end - time.monotonic()) > 0:
            self._inside.settimeout(left)
            with suppress(TimeoutError):
                self.rest()
        self._inside.settimeout(None)

    def handle(self, number: int, _: FrameType | None) -> None:
        """Take a signal."""
        self._count = count = self._count + 1
        self.made = True
        more = " Agents get their last calls; a third signal ends the server without." if count == _HURRY else ""
        # A buffered stream may be in the middle of a write.
        with suppress(OSError):  # no one reads it any more
            os.write(2, self._prefix + f"Signal ({number}) received.{more}\n".encode())
        if count > _HURRY:
            # Nothing is tidied up: what agents left in workspaces is removed at the next start.
            os._exit(1)
        self.wake()

    def close(self) -> None:
        """Let go of the sockets."""
        self._inside.close()
        self._outside.close()


@contextmanager
def stop_signals(prefix: bytes = b"") -> Iterator[StopRequest]:
    """Catch both signals inside the block; call it on the main thread. ``prefix`` precedes each message about one."""
    request = StopRequest(prefix)
    written_before = signal.set_wakeup_fd(request.fileno(), warn_on_full_buffer=False)
    before = {number: signal.signal(number, request.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(written_before)
        request.close()


@contextmanager
def hangup_calls(calls: Sequence[Callable[[], None]], stop: StopRequest) -> Iterator[None]:
    """Call each of ``calls`` at a SIGHUP inside the block; without any it is a ``stop``, unless it is ignored (nohup).

    They are called between two steps of the main thread, whatever locks that holds: they must take none.
    """
    if not calls and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if not calls:
            stop.handle(number, frame)
        for call in calls:
            call()

    before = signal.signal(signal.SIGHUP, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@contextmanager
def watchdog(turn: Callable[[], object]) -> Iterator[None]:
    """Report this process to systemd, if that asks for it, as long as ``turn`` returns and the block lasts.

    Once ``turn`` hangs or raises, nothing more is reported.
    """
    address, usec = os.environ.get("NOTIFY_SOCKET", ""), os.environ.get("WATCHDOG_USEC", "")
    of_another = os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid())
    if not address or not usec.isdecimal() or not int(usec) or of_another:
        yield
        return
    over = threading.Event()
    place = "\0" + address[1:] if address.startswith("@") else address  # An abstract socket.

    def report() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            while not over.is_set():
                turn()
                try:
                    sock.sendto(b"WATCHDOG=1", place)
                except OSError as error:
                    logger.warning("systemd's watchdog cannot be reached: %s", error.strerror)
                over.wait(int(usec) / 1e6 / 3)

    threading.Thread(target=report, name="repoagent-watchdog", daemon=True).start()
    try:
        yield
    finally:
        over.set()
