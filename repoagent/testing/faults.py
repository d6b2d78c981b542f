"""Making something go wrong at a named point of a load."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from repoagent.storage.workspaces.disk_space import free_bytes
from repoagent.testing.fault_points import Point

__all__ = ["FaultInjection", "InjectedError"]


class InjectedError(Exception):
    """What :meth:`FaultInjection.fail` raises if no other error is given."""


class FaultInjection:
    """Faults, each at a point (:mod:`repoagent.testing.fault_points`), and a record of the points that were passed.

    Give it to an :class:`~repoagent.testing.AgentHarness`. A fault happens once, when its point is reached.
    Thread-safe.
    """

    def __init__(self) -> None:
        self.room: int | None = None
        """The free bytes that workspaces pretend to have; None: what there is. For a full disk or tmpfs."""
        self._lock = threading.Lock()
        self._planned: dict[Point, Callable[[], object]] = {}
        self._passed: list[Point] = []
        self._counts: dict[tuple[str, bool], int] = {}
        self._cancelled = threading.Event()

    def at(self, point: str, do: Callable[[], object]) -> None:
        """Call ``do`` at ``point``, on the thread that gets there; what it raises is raised there.

        Raises:
            ValueError: ``point`` is not the name of one.
        """
        with self._lock:
            self._planned[Point.parse(point)] = do

    def fail(self, point: str, error: BaseException | None = None) -> None:
        """Raise ``error`` at ``point``: before the call, which then does not happen, or after it."""
        failure = error if error is not None else InjectedError(f"injected at '{point}'")

        def fail() -> None:
            raise failure

        self.at(point, fail)

    def cancel(self, point: str) -> None:
        """The load is cancelled at ``point``."""
        self.at(point, self._cancelled.set)

    def kill(self, point: str) -> None:
        """End this process at ``point`` with SIGKILL; :class:`~repoagent.testing.KillHarness` does it in a child."""
        self.at(point, lambda: os.kill(os.getpid(), signal.SIGKILL))

    def reset(self) -> None:
        """Forget all faults and all points that were passed."""
        with self._lock:
            self._planned.clear()
            self._passed.clear()
            self._counts.clear()
            self._cancelled.clear()
            self.room = None

    @property
    def passed(self) -> list[str]:
        """Every point that was passed so far, in order, with counts: what can be named here."""
        with self._lock:
            return [str(point) for point in self._passed]

    def cancelled(self) -> bool:
        """Whether a :meth:`cancel` point was reached; the harness hands this to the loader."""
        return self._cancelled.is_set()

    def free_bytes(self, path: Path) -> int | None:
        """:attr:`room`, or what is really free; the harness hands this to its workspaces."""
        return free_bytes(path) if self.room is None else self.room

    def reach(self, name: str, *, after: bool = False) -> None:
        """The program is at the point ``name``: do what is planned for it. The harness calls this."""
        with self._lock:
            count = self._counts.get((name, after), 0) + 1
            self._counts[name, after] = count
            point = Point(name, after, count)
            self._passed.append(point)
            planned = self._planned.pop(point, None)
        if planned is not None:
            planned()
