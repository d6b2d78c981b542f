"""Inbox: what callers' threads hand to the engine's thread."""

import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from repoagent_llm.engine.task import Task


@dataclass(slots=True)
class Mail:
    """Everything that arrived since the last look."""

    tasks: list[Task] = field(default_factory=list)
    cancelled: set[int] = field(default_factory=set)
    held: dict[int, bool] = field(default_factory=dict)
    stopping: bool = False


NO_MAIL = Mail()


class Inbox:
    """New requests, cancelled and held ids and the wish to stop, in one lock."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tasks: deque[Task] = deque()
        self._cancelled: set[int] = set()
        self._held: dict[int, bool] = {}
        self._stopping = False
        self._step: Collection[int] = ()
        self._end_step: Callable[[], None] | None = None

    def put(self, tasks: list[Task]) -> None:
        """Add requests."""
        with self._changed:
            self._tasks.extend(tasks)
            self._changed.notify()

    def cancel(self, request_id: int) -> None:
        """Ask for a request to be cancelled."""
        with self._changed:
            self._cancelled.add(request_id)
            self._changed.notify()
            self._end_if_unwanted()

    def hold(self, request_id: int, held: bool) -> None:
        """Ask for a request to give way, or to go on."""
        with self._changed:
            self._held[request_id] = held
            self._changed.notify()

    def begin_step(self, ids: Collection[int], end: Callable[[], None]) -> None:
        """The engine runs a step for these requests: ``end`` is called if all of them are cancelled meanwhile."""
        with self._changed:
            self._step, self._end_step = ids, end
            self._end_if_unwanted()

    def step_over(self) -> bool:
        """That step is over; whether ``end`` was called."""
        with self._changed:
            ended, self._end_step = self._end_step is None, None
            return ended

    def _end_if_unwanted(self) -> None:
        if self._end_step is not None and self._cancelled.issuperset(self._step):
            self._end_step()
            self._end_step = None

    def stop(self) -> None:
        """Ask the engine to end after the iteration that runs."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    @property
    def stopping(self) -> bool:
        """Whether the engine was asked to end."""
        return self._stopping

    def waiting(self) -> int:
        """How many requests the engine has not taken yet."""
        return len(self._tasks)

    def take(self, *, wait: bool, seconds: float | None = None) -> Mail:
        """Everything that arrived, or ``NO_MAIL``; with ``wait`` blocks for so long until there is something."""
        if not wait and not self._has_mail():
            return NO_MAIL
        with self._changed:
            if wait:
                self._changed.wait_for(self._has_mail, seconds)
            mail = Mail(list(self._tasks), self._cancelled, self._held, self._stopping)
            self._tasks.clear()
            self._cancelled, self._held = set(), {}
        return mail

    def _has_mail(self) -> bool:
        return bool(self._tasks or self._cancelled or self._held or self._stopping)
