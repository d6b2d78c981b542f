"""SIGINT and SIGTERM, once as a request and the second time as an order."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["StopRequest", "stop_signals"]


class StopRequest:
    """Set when the program should stop. ``wake`` is set then, and by whoever else wants the main thread to look."""

    def __init__(self, prefix: bytes = b"") -> None:
        self._prefix = prefix
        self.wake = threading.Event()
        self.made = False

    def _handle(self, number: int, _: FrameType | None) -> None:
        # A buffered stream may be in the middle of a write.
        os.write(2, self._prefix + f"Signal ({number}) received.\n".encode())
        if self.made:
            # Nothing is tidied up: what agents left in workspaces is removed at the next start.
            os._exit(1)
        self.made = True
        self.wake.set()

    def wait(self) -> None:
        """Return once the program should stop."""
        while not self.made:
            self.wake.wait()
            self.wake.clear()


@contextmanager
def stop_signals(prefix: bytes = b"") -> Iterator[StopRequest]:
    """Catch both signals inside the block; call it on the main thread. ``prefix`` goes before what is said of one."""
    request = StopRequest(prefix)
    before = {number: signal.signal(number, request._handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
