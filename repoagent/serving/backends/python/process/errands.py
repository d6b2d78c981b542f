"""What a model's process asks of the server and takes its time: on a few threads, the rest waits."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from repoagent.errors import UnavailableError
from repoagent.limits import Limits

__all__ = ["Errands"]


class Errands:
    """The errands of one process. Its threads live as long as there is something to do."""

    def __init__(self, model_name: str, limits: Limits) -> None:
        self._model_name = model_name
        self._most_threads: Final = limits.python_threads
        self._most_waiting: Final = limits.python_calls
        self._lock: Final = threading.Lock()
        self._threads = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def run(self, errand: Callable[[], None]) -> None:
        """Have ``errand``, which raises nothing, called on some thread, perhaps later.

        Raises:
            UnavailableError: too many wait, or the machine has no thread left.
        """
        with self._lock:
            if self._threads >= self._most_threads:
                self._let_wait(errand)
                return
            self._threads += 1
        thread = threading.Thread(
            target=self._work, args=(errand,), name=f"repoagent-{self._model_name}-errands", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            with self._lock:
                self._threads -= 1
            raise UnavailableError(f"the server has no thread for what model '{self._model_name}' asks") from error

    def forget(self) -> None:
        """Begin nothing of what waits: there is no one left to answer."""
        with self._lock:
            self._waiting.clear()

    def _let_wait(self, errand: Callable[[], None]) -> None:
        if len(self._waiting) >= self._most_waiting:
            raise UnavailableError(
                f"a process of model '{self._model_name}' waits for {self._most_waiting} loads, unloads and answers "
                f"about models already ({Limits.flag('python_calls')})"
            )
        self._waiting.append(errand)

    def _work(self, errand: Callable[[], None]) -> None:
        following: Callable[[], None] | None = errand
        while following is not None:
            following()
            with self._lock:
                following = self._waiting.popleft() if self._waiting else None
                self._threads -= following is None
