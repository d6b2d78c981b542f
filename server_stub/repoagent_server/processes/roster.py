"""The worker processes that there are, and questions to all of them, to one, or to some."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final

from repoagent.errors import InternalError, RepoAgentError, UnavailableError
from repoagent_server.processes.calls import Calls, Ended
from repoagent_server.processes.worker_process import WorkerProcess

logger = logging.getLogger(__name__)

STEP_SECONDS: Final = 30.0
"""How long a worker has for what needs no model's code. One that takes longer is ended, and another is started."""
LAST_SECONDS: Final = 5.0
_MOST: Final = 1 << 63
LEAVING: Final = -1
"""The number of the worker that is being replaced: its place behind the others, of which there is one."""


class Roster:
    """``workers`` by their numbers. Methods may be called from any thread."""

    def __init__(self, workers: Sequence[WorkerProcess]) -> None:
        self.lock = threading.RLock()
        """Held for no longer than a look at which workers there are and what they have, or a change of that."""
        self.changing = threading.RLock()
        """Held while workers take up what all of them have in common, for as long as one may be silent: who only asks
        does not wait for it. Never taken by one who holds ``lock``."""
        self._count = len(workers)
        self._workers = list(workers)
        """By their numbers; behind them the one that is being replaced, if any."""

    def __len__(self) -> int:
        return self._count

    def hang_up(self) -> None:
        """Have them open their logs again. For a handler of signals: takes no lock."""
        for worker in self._workers:
            worker.hang_up()

    def serving(self) -> list[int]:
        """The workers that have what the others have."""
        return [worker.index for worker in self._workers if worker.serves]

    def ask_all(
        self,
        name: str,
        *arguments: Any,
        timeout: float,
        read: Callable[[int, Any], Any] = lambda _, answer: answer,
    ) -> list[Any]:
        """What every worker answers that serves, as ``read`` makes it of the worker's number and the answer.

        A worker whose answer cannot be read is ended.

        Raises:
            RepoAgentError: all of them refuse, or have gone.
        """
        answers: list[Any] = []
        gone: RepoAgentError | None = None
        with self.lock:
            those = [(one.index, one.calls) for one in self._workers if one.serves and one.calls]
        end = time.monotonic() + timeout
        asked = [(index, calls, calls.begin(name, *arguments)) for index, calls in those]
        for index, calls, future in asked:
            try:
                answer = future.result(_left(end))
            except RepoAgentError as error:  # It has gone, or lacks what the others have.
                gone = error
            except FutureTimeoutError:
                gone = Ended(f"a worker has not answered '{name}' for {timeout} seconds")
            else:
                try:
                    answers.append(read(index, answer))
                except Exception as error:  # There is no end of what can be wrong.
                    logger.error("worker %d is ended, as its answer to '%s' cannot be read: %s", index, name, error)
                    calls.close()
        if not answers:
            raise gone or UnavailableError("no worker process is there")
        return answers

    def ask(self, index: int, name: str, *arguments: Any, timeout: float) -> Any:
        """What one worker answers.

        Raises:
            RepoAgentError: it refuses, has gone, or is too slow.
        """
        calls = self._workers[index].calls
        if calls is None:
            raise UnavailableError(f"worker {index} has ended")
        return calls.call(name, *arguments, timeout=timeout)

    def have(self, name: str, *arguments: Any) -> None:
        """Have all workers that serve do something. One that does not is ended: another one takes its place."""
        with self.changing:
            self._ask_those(name, *arguments, timeout=STEP_SECONDS, of=[one for one in self._workers if one.serves])

    def end(self, index: int) -> None:
        """End a worker that does not answer: another one takes its place. ``changing`` is held."""
        worker = self._workers[index]
        if worker.serves:  # Else it has ended, and that other one is there, or starts.
            logger.error("worker %d does not take up a change: it is ended", index)
            self._give_up(worker, worker.calls)

    def _give_up(self, worker: WorkerProcess, calls: Calls | None) -> None:
        """End a worker that did not answer ``calls``, or has ended, and return when that is seen: what comes next is
        not asked of it. Another process may have its place by now, and is not to blame."""
        with self.lock:
            if worker.calls is not calls:
                return
            worker.kill()
        worker.ended.wait(LAST_SECONDS)

    def _ask_those(
        self,
        name: str,
        *arguments: Any,
        timeout: float,
        expected: Callable[[Any], bool] = lambda _: True,
        of: Sequence[WorkerProcess] | None = None,
        late: list[WorkerProcess] | None = None,
    ) -> list[Any]:
        """The same of those that are there, however few. One that refuses, is too slow, or lies, is ended, or is added
        to ``late``."""
        answers = []
        with self.lock:
            those = [(one, one.calls) for one in (self._workers if of is None else of) if one.calls]
        asked = [(one, calls, calls.begin(name, *arguments)) for one, calls in those]
        end, fate = time.monotonic() + timeout, "it is ended" if late is None else "it is replaced"
        for worker, calls, future in asked:
            try:
                answer = future.result(_left(end))
                if not expected(answer):
                    raise InternalError(f"it answers {str(answer)[:64]!r}")
                answers.append(answer)
            except Ended:
                self._give_up(worker, calls)
            except FutureTimeoutError:
                text = "worker %d does not answer '%s' within %s seconds: %s"
                logger.error(text, worker.index, name, timeout, fate)
                self._give_up(worker, calls) if late is None else late.append(worker)
            except RepoAgentError as error:
                logger.error("worker %d does not do '%s': %s: %s", worker.index, name, fate, error)
                calls.close() if late is None else late.append(worker)
        return answers


def is_count(value: Any) -> bool:
    """Whether a worker counted so many of something, or milliseconds."""
    return type(value) is int and 0 <= value < _MOST


def _left(end: float) -> float:
    return max(0.0, end - time.monotonic())
