"""Counting who is inside, so that a model goes only when its last request has left."""

import threading

__all__ = ["Gate"]


class Gate:
    """A door with a counter. Once shut, nobody enters; whoever is inside can be waited for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._empty = threading.Condition(self._lock)
        self._inside = 0
        self._shut = False

    @property
    def inside(self) -> int:
        """How many are inside at the moment."""
        return self._inside

    def enter(self) -> bool:
        """Go in; False if the gate is shut. Every True needs one :meth:`leave`."""
        with self._lock:
            if self._shut:
                return False
            self._inside += 1
            return True

    def leave(self) -> None:
        """Go out again, from any thread."""
        with self._lock:
            self._inside -= 1
            if self._shut and not self._inside:
                self._empty.notify_all()

    def shut(self) -> None:
        """Let nobody in any more. Doing it twice changes nothing."""
        with self._lock:
            self._shut = True

    def wait_empty(self, timeout: float | None) -> bool:
        """Wait until the last one has left; False if ``timeout`` seconds were not enough."""
        with self._lock:
            return self._empty.wait_for(lambda: not self._inside, timeout)
