"""systemd's watchdog (``WatchdogSec=``): it restarts a service that does not report itself in time."""

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


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
