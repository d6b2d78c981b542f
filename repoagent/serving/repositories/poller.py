"""A thread that does something again and again: the control mode POLL, and unloads of idle models."""

import logging
import threading
from collections.abc import Callable

from repoagent.errors import RepoAgentError

__all__ = ["Poller"]

logger = logging.getLogger(__name__)


class Poller:
    """Calls ``poll`` every ``seconds`` until it is stopped. What ``poll`` raises is logged and does not end it.

    ``task`` names the work in the log.
    """

    def __init__(self, poll: Callable[[], None], seconds: float, task: str = "polling the model repositories") -> None:
        self._poll = poll
        self._seconds = seconds
        self._task = task
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="repoagent-poll", daemon=True)

    def start(self) -> None:
        """Begin; the first poll comes after one interval."""
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(self._seconds):
            try:
                self._poll()
            except RepoAgentError as error:
                if not self._stopping.is_set():  # else its loads were cancelled, or refused
                    logger.error("%s failed: %s", self._task, error)
            except Exception:
                logger.exception("%s failed", self._task)

    def end(self) -> None:
        """Let no further poll begin."""
        self._stopping.set()

    def wait(self, timeout: float) -> None:
        """After :meth:`end`: wait up to ``timeout`` seconds for a poll that is under way."""
        if self._thread.is_alive():
            self._thread.join(timeout)
