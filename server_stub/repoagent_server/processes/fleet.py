"""The worker processes: they are started, get their models, and are replaced when they die."""

import base64
import logging
import pickle
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from pathlib import Path
from typing import Any, Final

from repoagent.errors import RepoAgentError, UnavailableError
from repoagent_server.processes.calls import Calls, CallsUntil, Ended
from repoagent_server.processes.roster import LAST_SECONDS, LEAVING, STEP_SECONDS
from repoagent_server.processes.user import WorkerUser
from repoagent_server.processes.versions import Handed, Versions
from repoagent_server.processes.worker_process import Listeners, WorkerProcess

logger = logging.getLogger(__name__)

_START_SECONDS: Final = 60.0
_REFUSAL_SECONDS: Final = 3.0
"""How long a worker has for a step at the end of the server, whose time is measured: one that hangs is not waited for
again and again."""
_SLOWEST_RESTART_SECONDS: Final = 30.0


class Fleet(Versions):
    """``count`` workers: each runs the module ``program``, whose call ``start`` gets ``options`` (pickled).

    ``answers`` has what a worker may call, whose number is a function: another one once the worker leaves.

    ``user`` is whose they are. ``on_missing`` gets a version that a worker could not build again, ``replay`` a new
    worker before it serves.

    Methods may be called from any thread.
    """

    def __init__(
        self,
        count: int,
        program: str,
        options: object,
        listeners: Listeners,
        answers: Callable[["Fleet", Callable[[], int]], Mapping[str, Callable[..., Any]]],
        *,
        on_missing: Callable[[Handed, str], None],
        deadliest: int,
        replay: Callable[[CallsUntil], None] = lambda _: None,
        user: WorkerUser | None = None,
    ) -> None:
        self._make_worker = partial(WorkerProcess, program=program, listeners=listeners, user=user)
        super().__init__([self._make_worker(index) for index in range(count)], self._replace_later)
        self._options = base64.b64encode(pickle.dumps(options)).decode()
        self._make_answers = answers
        self._on_missing = on_missing
        self._deadliest = deadliest
        self._replay = replay
        self._user = user
        self.private: Sequence[Path] = ()
        """Where the keeper has what no other user may read but what ``user`` is handed over."""
        self._replacing = threading.Lock()
        """Held while one worker takes the place of another: of those that leave there is one."""
        self._open = False
        self.stopping = False
        """Whether no worker is to take anything new, and none is started any more."""

    def start(self) -> None:
        """Start all of them.

        Raises:
            RepoAgentError: one of them cannot start.
        """
        with self.lock:
            started = []
            for worker in self._workers:
                try:
                    started.append(self._launch(worker))
                except OSError as error:
                    whose = f" as user '{self._user.name}', who must be able to run it" if self._user else ""
                    raise UnavailableError(f"{sys.executable} cannot be started{whose}: {error.strerror}") from error
                self._meet(worker)
        for worker, one in zip(self._workers, started, strict=True):
            try:
                one.result(_START_SECONDS)
            except FutureTimeoutError:
                raise UnavailableError(f"worker {worker.index} has not started in {_START_SECONDS:g} s") from None
            with self.changing:
                if (calls := worker.calls) is not None:  # Else it has died since, and another one is being started.
                    self._complete(worker, calls)

    def open(self) -> None:
        """Have them answer requests: from here on, and those that are started later."""
        with self.changing:
            self._open = True
        self.ask_all("open", timeout=STEP_SECONDS)

    def refuse(self) -> None:
        """Have them take no new requests, and start none any more."""
        with self.lock:
            self.stopping = True
        self._ask_those("refuse", timeout=_REFUSAL_SECONDS)

    def finish(self, timeout: float) -> None:
        """Have them answer what is left for at most ``timeout`` seconds, and end."""
        with self.lock:
            self.stopping = True
        self._ask_those("finish", timeout, timeout=timeout + LAST_SECONDS)
        self.close()

    def close(self) -> None:
        """End all of them. Twice is once."""
        with self.lock:
            self.stopping = True
        for worker in self._workers:
            if worker.calls is not None:
                worker.calls.close()
        for worker in self._workers:
            worker.wait()

    def watch(self, seconds: float) -> None:
        """End each worker whose front ends have not come round within ``seconds``: it hangs."""
        with self.lock:
            those = [(one, one.calls) for one in self._workers if one.serves and one.calls]
        asked = [(one, calls, calls.begin("turn")) for one, calls in those]
        end = time.monotonic() + seconds
        for worker, calls, turn in asked:
            try:
                turn.result(max(0.0, end - time.monotonic()))
            except RepoAgentError:
                continue  # It has ended, or is another version that cannot be asked.
            except FutureTimeoutError:
                with self.lock:
                    if worker.calls is calls and worker.index != LEAVING and not self.stopping:
                        logger.error("worker %d is ended: it has done nothing for %g seconds", worker.index, seconds)
                        worker.kill()

    def hand_over(self, root: str) -> None:
        """Let workers read what lies beneath ``root``.

        Raises:
            UnavailableError: the filesystem has no means for that.
        """
        if self._user is not None:
            self._user.hand_over(Path(root), self.private)

    def _launch(self, worker: WorkerProcess) -> "Future[Any]":
        answers = self._make_answers(self, lambda: worker.index)
        return worker.launch(self._options, answers, lambda why: self._ended(worker, why))

    def _meet(self, worker: WorkerProcess) -> None:
        """Give ``worker`` a way to each other one."""
        for other in self._workers:
            if other is not worker and other.calls is not None:
                worker.link(other)

    def link(self, one: int, other: int) -> None:
        """Give two workers another way to each other: what they had is broken."""
        with self.lock:
            first, second = self._workers[one], self._workers[other]
            if one != other and first.calls is not None and second.calls is not None:
                first.link(second)

    def _ended(self, worker: WorkerProcess, why: str) -> None:
        """Of the thread that reads from ``worker``: it has gone, or is to go."""
        if why:
            worker.kill()
        how = worker.wait()
        with self.lock:
            worker.calls, worker.serves = None, False
            if worker.index == LEAVING:
                self._workers.remove(worker)
            worker.ended.set()
            if self.stopping or worker not in self._workers:
                return
            pause = worker.pause()
        again = f" in {pause:g} seconds" if pause else ""
        logger.error("worker %d has ended (%s): another one is started%s", worker.index, why or how, again)
        self._revive_later(worker, pause)

    def _revive_later(self, worker: WorkerProcess, pause: float) -> None:
        threading.Thread(target=self._revive, args=(worker, pause), name="repoagent-revive", daemon=True).start()

    def _revive(self, worker: WorkerProcess, pause: float) -> None:
        time.sleep(pause)
        try:
            with self.lock:
                if self.stopping or worker not in self._workers:  # A reload has filled its place meanwhile.
                    return
                started = self._launch(worker)
                handed = list(self._handed.values())
                calls = worker.calls
        except OSError as error:  # Neither memory nor processes are left: later there may be some.
            logger.error("worker %d cannot be started: %s", worker.index, error)
            self._revive_later(worker, _SLOWEST_RESTART_SECONDS)
            return
        assert calls is not None
        try:
            started.result(_START_SECONDS)
            with self.lock:
                self._meet(worker)
            lost = [one for one in handed if not self._handed_again(worker, calls, one)]
            for one in lost:  # Before it answers: a client must not find a model here and not there.
                self._on_missing(one, "")
            with self.changing:
                self._complete(worker, calls)
            logger.info("worker %d serves again", worker.index)
        except Exception as error:  # Whatever it is: a worker that does not answer must not keep its socket.
            logger.error("worker %d cannot be started: %s", worker.index, error or type(error).__name__)
            calls.close()  # Its end starts another one.

    def replace(self, seconds: float) -> None:
        """Put another process in the place of each worker, one after the other: the new one serves before the old one
        accepts no more connections, and the old one ends when its clients have gone, at the latest after ``seconds``.

        Where a new one cannot be had, the old ones stay.
        """
        for index in range(self._count):
            if not self._replaced(self._workers[index], seconds):
                return
        logger.info("all worker processes have been replaced")

    def _replace_later(self, workers: Sequence[WorkerProcess]) -> None:
        """Replace ``workers``, which hang in part: what they do for other models is not cut off."""

        def replace() -> None:
            for worker in workers:
                self._replaced(worker, STEP_SECONDS)

        threading.Thread(target=replace, name="repoagent-replace", daemon=True).start()

    def _replaced(self, old: WorkerProcess, seconds: float) -> bool:
        with self._replacing:
            return self._replaced_alone(old, seconds)

    def _replaced_alone(self, old: WorkerProcess, seconds: float) -> bool:
        fresh = self._make_worker(old.index)
        try:
            with self.lock:
                if self.stopping:
                    return False
                if old not in self._workers[: self._count]:  # It has been replaced while this waited.
                    return True
                started, calls = self._launch(fresh), fresh.calls
            assert calls is not None
            started.result(_START_SECONDS)
            handed: set[Handed] = set()
            lost: list[Handed] = []
            while True:
                with self.lock:
                    if self.stopping:
                        raise UnavailableError("the server is stopping")
                    more = [one for one in self._handed.values() if one not in handed and one.can_be_had(fresh.index)]
                    if not more:
                        leaving = self._swap(old, fresh)
                        break
                handed.update(more)  # After the first time, what has been loaded meanwhile.
                lost += [one for one in more if not self._has_files(fresh, calls, one)]
            self._begin(old, fresh, calls, lost)
        except Exception as error:  # Whatever it is, the old one serves on.
            logger.error("worker %d is not replaced: %s", fresh.index, error or type(error).__name__)
            fresh.kill()
            return False
        logger.info("worker %d has been replaced", fresh.index)
        if leaving is not None:
            try:
                leaving.call("turn", timeout=STEP_SECONDS)  # One that hangs would keep clients that come to it.
                leaving.call("leave", seconds, timeout=3 * seconds + LAST_SECONDS)
            except RepoAgentError:
                old.kill()
            if not old.ended.wait(2 * LAST_SECONDS):  # a thread of it hangs
                old.kill()
                old.ended.wait(LAST_SECONDS)
        return True

    def _has_files(self, fresh: WorkerProcess, calls: Calls, handed: Handed) -> bool:
        """Have ``fresh`` build a version; False if its plaintext has been wiped."""
        try:
            self._hand(fresh, calls, handed)
        except RepoAgentError as error:
            if isinstance(error, Ended) or not handed.fleeting:
                raise
            return False
        return True

    def _swap(self, old: WorkerProcess, fresh: WorkerProcess) -> Calls | None:
        """Have loads reach ``fresh`` in the place of ``old``; the calls of that one, if it lives. Holds the lock."""
        self._workers[fresh.index] = fresh
        if old.calls is not None:
            self._workers.append(old)
            old.index = LEAVING
        return old.calls

    def _begin(self, old: WorkerProcess, fresh: WorkerProcess, calls: Calls, lost: Sequence[Handed]) -> None:
        """Have ``fresh`` serve, once the agents have brought it the versions that it has ``lost``; else ``old`` is put
        back."""
        try:
            for one in lost:
                if self._is_shown(one):  # A load of the whole model may have brought it already.
                    one.missing = True
                    self._on_missing(one, "")
            with self.changing:
                if any(map(self._is_shown, lost)):
                    raise UnavailableError("its agents have not brought all models again")
                with self.lock:
                    self._meet(fresh)
                self._complete(fresh, calls)
        except BaseException:
            with self.lock:
                for one in lost:
                    one.missing = False
                self._workers[fresh.index] = old
                if old.index == LEAVING:
                    self._workers.pop()
                    old.index = fresh.index
                    self._meet(old)
            raise

    def _handed_again(self, worker: WorkerProcess, calls: Calls, handed: Handed) -> bool:
        """Have a new worker build what the others have, or pass its requests on; False if it cannot: files may have
        been wiped since.

        Raises:
            Ended: it died of that.
        """
        try:
            self._hand(worker, calls, handed)
        except Ended:
            handed.deaths += 1
            if handed.deaths >= self._deadliest:
                self._forget(handed)
                self._on_missing(handed, f"{handed.deaths} workers in a row have died while they loaded it")
            raise
        except RepoAgentError as error:
            logger.info("model '%s' version %d is loaded again: %s", handed.model, handed.version, error)
            handed.missing = True
            return False
        handed.deaths = 0
        return True

    def _complete(self, worker: WorkerProcess, calls: Calls) -> None:
        """Have a worker that has built everything serve it. Nothing changes meanwhile: it has one time for all."""
        soon = CallsUntil(calls, STEP_SECONDS)
        self._replay(soon)
        for model, shown in self._shown.items():
            soon.call("show", model, self._entries(shown))
        if self._open:
            soon.call("open")
        with self.lock:
            worker.serves = worker.calls is calls
