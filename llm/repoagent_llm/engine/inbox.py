"""Inbox: what callers' threads hand to the engine's thread."""

import threading
from collections import deque
from dataclasses import dataclass, field

from repoagent_llm.engine.task import Task

__all__ = ["NO_MAIL", "Inbox", "Mail"]


@dataclass(slots=True)
class Mail:
    """Everything that arrived since the last look."""

    tasks: list[Task] = field(default_factory=list)
    cancelled: set[int] = field(default_factory=set)
    stopping: bool = False


NO_MAIL = Mail()


class Inbox:
    """New requests, cancelled ids and the wish to stop, in one lock."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tasks: deque[Task] = deque()
        self._cancelled: set[int] = set()
        self._stopping = False

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

    def take(self, *, wait: bool) -> Mail:
        """Everything that arrived, or ``NO_MAIL``; with ``wait`` blocks until there is something."""
        if not wait and not (self._tasks or self._cancelled or self._stopping):
            return NO_MAIL
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: bool(self._tasks or self._cancelled or self._stopping))
            mail = Mail(list(self._tasks), self._cancelled, self._stopping)
            self._tasks.clear()
            self._cancelled = set()
        return mail
