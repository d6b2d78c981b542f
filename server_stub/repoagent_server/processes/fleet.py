"""The worker processes: they are started, get their models, and are replaced when they die."""

import base64
import logging
import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from repoagent.errors import CancelledError, InternalError, RepoAgentError, UnavailableError
from repoagent_server.processes.calls import Calls, Ended
from repoagent_server.processes.worker_process import Listeners, WorkerProcess

logger = logging.getLogger(__name__)

_START_SECONDS: Final = 60.0
_STEP_SECONDS: Final = 30.0
"""How long a worker has for what needs no model's code. One that takes longer is ended, and another is started."""
_REFUSAL_SECONDS: Final = 3.0
"""The same at the end of the server, whose time is measured: one that hangs is not waited for again and again."""
_LAST_SECONDS: Final = 5.0
_PASSED_SECONDS: Final = 5.0
"""How long requests may be on their way from one worker to another."""
_LEAVING: Final = -1
"""The number of the worker that is being replaced: its place behind the others, of which there is one."""
_TICK_SECONDS: Final = 0.05
_SLOWEST_RESTART_SECONDS: Final = 30.0


@dataclass(eq=False, slots=True)
class Handed:
    """A version that the workers build, under a number that no other one has."""

    number: int
    model: str
    version: int
    config: bytes
    root: str
    fleeting: bool
    missing: bool = False
    """A worker that was started later could not build it: another load brings it back."""
    deaths: int = 0
    """How many workers in a row have died while they built it again."""
    home: int | None = None
    """The one worker that builds it, while the others pass requests on; None: all build it."""
    complete: bytes | None = None
    """The configuration that its home has made of it."""

    @property
    def order(self) -> list[Any]:
        """The arguments of the call ``build``."""
        return [self.number, self.model, self.version, _text(self.config), self.root, self.fleeting, self.homed]

    @property
    def homed(self) -> bool:
        """Whether one worker has it."""
        return self.home is not None

    @property
    def passed(self) -> list[Any]:
        """The arguments of the call ``pass_on``."""
        return [self.number, self.model, self.version, _text(self.complete or b""), self.root, self.home]


class Fleet:
    """``count`` workers: each runs the module ``program``, whose call ``start`` gets ``options`` (pickled).

    ``answers`` has what a worker may call, whose number is a function: another one once the worker leaves.

    ``on_missing`` gets a version that a worker could not build again, ``replay`` a new worker before it serves. Methods
    may be called from any thread.
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
        replay: Callable[[Calls], None] = lambda _: None,
    ) -> None:
        self._options = base64.b64encode(pickle.dumps(options)).decode()
        self._make_answers = answers
        self._on_missing = on_missing
        self._deadliest = deadliest
        self._replay = replay
        self.lock = threading.RLock()
        """Held where nothing may change: which workers there are, and what they have in common."""
        self._make_worker = partial(WorkerProcess, program=program, listeners=listeners)
        self._count = count
        self._workers = [self._make_worker(index) for index in range(count)]
        """By their numbers; behind them the one that is being replaced, if any."""
        self._handed: dict[int, Handed] = {}
        self._shown: dict[str, dict[int, int]] = {}
        """By model: the numbers of its versions that serve."""
        self._next = 0
        self._open = False
        self._closing = False

    def __len__(self) -> int:
        return self._count

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all of them.

        Raises:
            RepoAgentError: one of them cannot start.
        """
        with self.lock:
            started = []
            for worker in self._workers:
                started.append(self._launch(worker))
                self._meet(worker)
        for worker, one in zip(self._workers, started, strict=True):
            try:
                one.result(_START_SECONDS)
            except FutureTimeoutError:
                raise UnavailableError(f"worker {worker.index} has not started in {_START_SECONDS:g} s") from None
            worker.serves = True

    def hang_up(self) -> None:
        """Have them open their logs again. For a handler of signals: takes no lock."""
        for worker in self._workers:
            worker.hang_up()

    def open(self) -> None:
        """Have them answer requests: from here on, and those that are started later."""
        with self.lock:
            self._open = True
        self.ask_all("open", timeout=_STEP_SECONDS)

    def refuse(self) -> None:
        """Have them take no new requests, and start none any more."""
        with self.lock:
            self._closing = True
        self._ask_those("refuse", timeout=_REFUSAL_SECONDS)

    def finish(self, timeout: float) -> None:
        """Have them answer what is left for at most ``timeout`` seconds, and end."""
        with self.lock:
            self._closing = True
        self._ask_those("finish", timeout, timeout=timeout + _LAST_SECONDS)
        self.close()

    def close(self) -> None:
        """End all of them. Twice is once."""
        with self.lock:
            self._closing = True
        for worker in self._workers:
            if worker.calls is not None:
                worker.calls.close()
        for worker in self._workers:
            worker.wait()

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
            if worker.index == _LEAVING:
                self._workers.remove(worker)
            worker.ended.set()
            if self._closing or worker not in self._workers:
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
                if self._closing or worker not in self._workers:  # A reload has filled its place meanwhile.
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
            with self.lock:
                self._complete(worker, calls)
            logger.info("worker %d serves again", worker.index)
        except Exception as error:  # Whatever it is: a worker that does not answer must not keep its socket.
            logger.error("worker %d cannot be started: %s", worker.index, error or type(error).__name__)
            calls.close()  # Its end starts another one.

    def _complete(self, worker: WorkerProcess, calls: Calls) -> None:
        """Have a worker that has built everything serve it. Holds the lock."""
        self._replay(calls)
        for model, shown in self._shown.items():
            calls.call("show", model, _entries(shown), timeout=_STEP_SECONDS)
        if self._open:
            calls.call("open", timeout=_STEP_SECONDS)
        worker.serves = worker.calls is calls

    def replace(self, seconds: float) -> None:
        """Put another process in the place of each worker, one after the other: the new one serves before the old one
        accepts no more connections, and the old one ends when its clients have gone, at the latest after ``seconds``.

        Where a new one cannot be had, the old ones stay.
        """
        for index in range(self._count):
            if not self._replaced(self._workers[index], seconds):
                return
        logger.info("all worker processes have been replaced")

    def _replaced(self, old: WorkerProcess, seconds: float) -> bool:
        fresh = self._make_worker(old.index)
        try:
            with self.lock:
                if self._closing:
                    return False
                started, handed = self._launch(fresh), list(self._handed.values())
                calls = fresh.calls
            assert calls is not None
            started.result(_START_SECONDS)
            lost = [one for one in handed if not self._has_files(fresh, calls, one)]
            with self.lock:
                for one in self._handed.values():  # What has been loaded meanwhile.
                    if one not in handed:
                        self._hand(fresh, calls, one)
                if self._closing:
                    raise UnavailableError("the server is stopping")
                leaving = self._swap(old, fresh)
            self._begin(old, fresh, calls, lost)
        except Exception as error:  # Whatever it is, the old one serves on.
            logger.error("worker %d is not replaced: %s", fresh.index, error or type(error).__name__)
            fresh.kill()
            return False
        logger.info("worker %d has been replaced", fresh.index)
        if leaving is not None:
            try:
                leaving.call("leave", seconds, timeout=3 * seconds + _LAST_SECONDS)
            except RepoAgentError:
                old.kill()
            old.ended.wait(2 * _LAST_SECONDS)
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
            old.index = _LEAVING
        return old.calls

    def _begin(self, old: WorkerProcess, fresh: WorkerProcess, calls: Calls, lost: Sequence[Handed]) -> None:
        """Have ``fresh`` serve, once the agents have brought it the versions that it has ``lost``; else ``old`` is put
        back."""
        try:
            for one in lost:
                if self._is_shown(one):  # A load of the whole model may have brought it already.
                    one.missing = True
                    self._on_missing(one, "")
            with self.lock:
                if any(map(self._is_shown, lost)):
                    raise UnavailableError("its agents have not brought all models again")
                self._meet(fresh)
                self._complete(fresh, calls)
        except BaseException:
            with self.lock:
                for one in lost:
                    one.missing = False
                self._workers[fresh.index] = old
                if old.index == _LEAVING:
                    self._workers.pop()
                    old.index = fresh.index
                    self._meet(old)
            raise

    def _is_shown(self, handed: Handed) -> bool:
        return self._shown.get(handed.model, {}).get(handed.version) == handed.number

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

    def _hand(self, worker: WorkerProcess, calls: Calls, handed: Handed) -> None:
        """Have a new worker build a version, or pass its requests on."""
        if handed.number not in self._handed:
            return
        if handed.home in (None, worker.index):
            try:
                calls.call("build", *handed.order)
            except RepoAgentError as error:
                if isinstance(error, Ended) or handed.number in self._handed:
                    raise
                return  # It has been unloaded meanwhile, with its files.
        elif handed.complete is not None:  # Else it is being built; all workers hear of it then.
            calls.call("pass_on", *handed.passed, timeout=_STEP_SECONDS)
        with self.lock:
            shown = self._shown.get(handed.model, {})
            if handed.number not in self._handed:  # The others have let go of it while this one built it.
                calls.call("close", handed.number)
            elif shown.get(handed.version) == handed.number:  # An ensemble is built over members that are shown.
                calls.call("show", handed.model, _entries(shown), timeout=_STEP_SECONDS)

    def _forget(self, handed: Handed) -> None:
        with self.lock:
            self._handed.pop(handed.number, None)

    # -- versions ------------------------------------------------------------------------------------------------

    def build(
        self,
        model: str,
        version: int,
        config: bytes,
        root: str,
        *,
        fleeting: bool,
        cancelled: Callable[[], bool],
        home: int | None = None,
    ) -> tuple[Handed, dict[str, Any]]:
        """Have every worker, or the one that is its ``home``, build a version that is not shown yet; the answer of the
        first worker.

        Raises:
            CancelledError: ``cancelled`` became true; they have let go of it.
            RepoAgentError: one of them died or cannot build it; the others have let go of it.
        """
        with self.lock:
            self._next += 1
            handed = Handed(self._next, model, version, config, root, fleeting, home=home)
            chosen = self._workers if home is None else [self._workers[home]]
            members = [(worker, worker.calls) for worker in chosen if worker.calls is not None]
            if not members:
                raise UnavailableError(f"model '{model}' cannot be loaded: no worker process is there")
            self._handed[handed.number] = handed
            builds = [(worker, calls.begin("build", *handed.order)) for worker, calls in members]
        watch = _Watch(cancelled, lambda: self._ask_those("cancel", handed.number, timeout=_STEP_SECONDS))
        answers: list[Any] = []
        failure: RepoAgentError | None = None
        for worker, build in builds:
            try:
                answers.append(watch.result(build))
            except Ended as error:
                if worker.index != _LEAVING:
                    failure = failure or UnavailableError(f"{error} while it loaded model '{model}'")
            except RepoAgentError as error:
                failure = failure or error
        if watch.cancelled:
            failure = failure or CancelledError(f"the load of model '{model}' was cancelled")
        if failure is not None:
            self.close_version(handed)
            raise failure
        first = answers[0] if answers else None
        if not isinstance(first, dict):
            raise InternalError(f"a worker process returned no description of model '{model}'")
        return handed, first

    def choose_home(self) -> int:
        """The worker that is the home of the fewest versions.

        Raises:
            UnavailableError: there is none.
        """
        with self.lock:
            serving = [worker.index for worker in self._workers if worker.serves and worker.index != _LEAVING]
            homes = [handed.home for handed in self._handed.values()]
        if not serving:
            raise UnavailableError("no worker process is there")
        return min(serving, key=homes.count)

    def stateful(self, backend: str) -> bool:
        """Whether models of ``backend`` are better in one worker. Raises what a worker does that cannot find it."""
        return self.ask(self.choose_home(), "stateful", backend, timeout=_STEP_SECONDS) is True

    def settle(self, handed: Handed, home: int, complete: bytes) -> None:
        """Have all workers but its ``home`` pass requests for a version on, whether or not they have built it, too.

        Raises:
            RepoAgentError: one of them cannot; all have let go of it.
        """
        with self.lock:
            handed.complete = complete
            others = [(one, one.calls) for one in self._workers if one.calls is not None and one.index != home]
            asked = [(worker, calls.begin("pass_on", *handed.passed)) for worker, calls in others]
        for worker, one in asked:
            try:
                one.result(_STEP_SECONDS)
            except (RepoAgentError, FutureTimeoutError) as error:
                if worker.index == _LEAVING:
                    continue
                self.close_version(handed)
                text = f"a worker cannot pass on requests for model '{handed.model}': {error}"
                raise UnavailableError(text) from error

    def homes(self) -> dict[tuple[str, int], int]:
        """The home of each version that is served and has one."""
        with self.lock:
            found = [self._handed.get(number) for shown in self._shown.values() for number in shown.values()]
        return {(one.model, one.version): one.home for one in found if one is not None and one.home is not None}

    def show(self, model: str, versions: Mapping[int, Handed]) -> None:
        """Serve these versions of ``model`` from now on, in all workers. A worker that does not is ended."""
        numbers = {version: handed.number for version, handed in versions.items()}
        with self.lock:
            self._ask_those("expect", model, timeout=_STEP_SECONDS)
            self._shown[model] = numbers
            self._ask_those("show", model, _entries(numbers), timeout=_STEP_SECONDS)

    def retire(self, handed: Handed) -> None:
        """Let no new request of it in."""
        with self.lock:
            shown = self._shown.get(handed.model, {})
            if shown.get(handed.version) == handed.number:
                del shown[handed.version]
            if not shown:
                self._shown.pop(handed.model, None)
            self._ask_those("retire", handed.number, timeout=_STEP_SECONDS)

    def running(self, handed: Handed) -> int:
        """How many of its requests are inside."""
        return sum(self._ask_those("running", handed.number, timeout=_STEP_SECONDS, expected=int))

    def drain(self, handed: Handed, timeout: float | None) -> bool:
        """Wait until its last request has been answered."""
        if handed.home is not None:  # It takes what others pass on until all of that has come.
            others = [one for one in self._workers if one.index != handed.home]
            short = _PASSED_SECONDS if timeout is None else min(timeout, _PASSED_SECONDS)
            self._ask_those("drain", handed.number, short, timeout=short + _LAST_SECONDS, of=others)
        limit = None if timeout is None else timeout + _LAST_SECONDS
        return all(self._ask_those("drain", handed.number, timeout, timeout=limit))

    def close_version(self, handed: Handed) -> None:
        """Have all workers let go of it."""
        self._forget(handed)
        self._ask_those("close", handed.number, timeout=None)

    def serving(self) -> list[int]:
        """The workers that have what the others have."""
        return [worker.index for worker in self._workers if worker.serves]

    # -- questions -----------------------------------------------------------------------------------------------

    def ask_all(
        self,
        name: str,
        *arguments: Any,
        timeout: float | None,
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
            asked = [
                (one.index, one.calls, one.calls.begin(name, *arguments))
                for one in self._workers
                if one.serves and one.calls
            ]
        end = _end(timeout)
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

    def ask(self, index: int, name: str, *arguments: Any, timeout: float | None) -> Any:
        """What one worker answers.

        Raises:
            RepoAgentError: it refuses, has gone, or is too slow.
        """
        calls = self._workers[index].calls
        if calls is None:
            raise UnavailableError(f"worker {index} has ended")
        return calls.call(name, *arguments, timeout=timeout)

    def _ask_those(
        self,
        name: str,
        *arguments: Any,
        timeout: float | None,
        expected: type[object] = object,
        of: Sequence[WorkerProcess] | None = None,
    ) -> list[Any]:
        """The same of those that are there, however few. One that refuses, is too slow, or lies, is ended."""
        answers = []
        with self.lock:
            those = self._workers if of is None else of
            asked = [(one, one.calls, one.calls.begin(name, *arguments)) for one in those if one.calls]
        end = _end(timeout)
        for worker, calls, future in asked:
            try:
                answer = future.result(_left(end))
                if not isinstance(answer, expected):
                    raise InternalError(f"it answers {str(answer)[:64]!r}")
                answers.append(answer)
            except Ended:
                pass
            except FutureTimeoutError:
                logger.error("a worker is ended, as it does not answer '%s'", name)
                worker.kill()
            except RepoAgentError as error:
                logger.error("a worker is ended, as it does not do '%s': %s", name, error)
                calls.close()
        return answers


class _Watch:
    """Waits for builds; calls ``cancel`` once when ``is_cancelled`` is true."""

    def __init__(self, is_cancelled: Callable[[], bool], cancel: Callable[[], object]) -> None:
        self._is_cancelled = is_cancelled
        self._cancel = cancel
        self.cancelled = False

    def result(self, build: "Future[Any]") -> Any:
        """What ``build`` gives, or raises."""
        while True:
            try:
                return build.result(_TICK_SECONDS)
            except FutureTimeoutError:
                if not self.cancelled and self._is_cancelled():
                    self.cancelled = True
                    self._cancel()


def _end(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def _left(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic())


def _text(config: bytes) -> str:
    """A configuration as a message has it."""
    return base64.b64encode(config).decode()


def _entries(numbers: Mapping[int, int]) -> list[list[int]]:
    """Versions and numbers as a message has them: keys of JSON are texts."""
    return [list(pair) for pair in numbers.items()]
