"""Counting who is inside, so that a model goes only when its last request has left."""

import threading

__all__ = ["Gate"]


class Gate:
    """A door with a counter. Once shut, no request enters; those inside can be waited for.

    Every request goes in and out, on any thread, so neither takes a lock: the counter is the length of a list, which
    changes in one step. Who enters is counted first and looks at the door then, so no one is inside unnoticed.
    """

    def __init__(self) -> None:
        self._empty = threading.Condition()
        self._inside: list[None] = []
        self._shut = False

    @property
    def inside(self) -> int:
        """How many are inside at the moment."""
        return len(self._inside)

    def enter(self) -> bool:
        """Go in; False if the gate is shut. Every True needs one :meth:`leave`."""
        self._inside.append(None)
        if self._shut:
            self.leave()
            return False
        return True

    def leave(self) -> None:
        """Go out again, from any thread."""
        self._inside.pop()
        if self._shut:
            with self._empty:
                self._empty.notify_all()

    def shut(self) -> None:
        """Let no one in any more. Doing it twice changes nothing."""
        self._shut = True

    def wait_empty(self, timeout: float | None) -> bool:
        """Wait until the last one has left; False if ``timeout`` seconds were not enough."""
        with self._empty:
            return self._empty.wait_for(lambda: not self._inside, timeout)
