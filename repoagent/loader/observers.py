"""Telling plug-ins what happened, without making a load wait for them."""

import logging
import queue
import threading
from collections.abc import Callable

__all__ = ["ObserverThread"]

logger = logging.getLogger("repoagent.loader")

_Job = Callable[[], None]


class ObserverThread:
    """Runs jobs one after another on a thread of its own, which starts with the first job.

    At most ``limit`` jobs wait; more are dropped and counted, so a slow observer costs events and never a load. A job
    that raises is logged and forgotten.
    """

    def __init__(self, limit: int = 1024) -> None:
        self._queue: queue.Queue[_Job | None] = queue.Queue(limit)
        self._idle = threading.Condition()
        self._pending = 0
        self._dropped = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def dropped(self) -> int:
        """How many jobs found the queue full."""
        with self._idle:
            return self._dropped

    def submit(self, job: _Job) -> None:
        """Queue ``job``; never waits. After :meth:`close` it is dropped."""
        with self._idle:
            if self._closed:
                self._dropped += 1
                return
            try:
                self._queue.put_nowait(job)
            except queue.Full:
                self._count_drop()
                return
            self._pending += 1
            self._ensure_thread()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything queued so far has run; False if ``timeout`` seconds passed first."""
        with self._idle:
            return self._idle.wait_for(lambda: self._pending == 0, timeout)

    def close(self, timeout: float | None = 5.0) -> None:
        """Take no more jobs, let the queued ones run for at most ``timeout`` seconds, and end the thread."""
        with self._idle:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
        if not self.flush(timeout):
            logger.warning("observers did not finish in %s s; %d events are lost", timeout, self._abandon())
        if thread is not None:
            self._queue.put(None)
            thread.join(timeout)

    def _ensure_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="repoagent-observers", daemon=True)
            self._thread.start()

    def _count_drop(self) -> None:
        if self._dropped == 0:
            logger.warning("observers are too slow: the queue is full, events are dropped (and counted)")
        self._dropped += 1

    def _abandon(self) -> int:
        lost = 0
        while True:
            try:
                self._queue.get_nowait()
            except queue.Empty:
                return lost
            lost += 1
            self._done()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                job()
            except Exception:
                logger.exception("an observer raised")
            finally:
                self._done()

    def _done(self) -> None:
        with self._idle:
            self._pending -= 1
            self._idle.notify_all()
