"""The versions of models that workers have: built, shown, drained and closed in all of them, or in their home."""

import base64
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from repoagent.errors import CancelledError, InternalError, RepoAgentError, UnavailableError
from repoagent_server.processes.calls import Calls, Ended
from repoagent_server.processes.roster import LAST_SECONDS, LEAVING, STEP_SECONDS, Roster, is_count
from repoagent_server.processes.worker_process import WorkerProcess

logger = logging.getLogger(__name__)

_PASSED_SECONDS: Final = 5.0
"""How long requests may be on their way from one worker to another."""
_TICK_SECONDS: Final = 0.05
_SLOWEST_SECONDS: Final = 300.0
"""How long a worker has to let go of a version, or to end a load that was cancelled: code of the model may take its
time."""
_SLOWER: Final = 10
"""How many times as long as its load a version may take where one worker builds it alone, or as the last one."""


@dataclass(eq=False, slots=True)
class Handed:
    """A version that the workers build, under a number that no other one has."""

    number: int
    model: str
    version: int
    config: bytes
    root: str
    fleeting: bool
    calls: bool = False
    """Whether it may have other models called, for no client."""
    missing: bool = False
    """A worker that was started later could not build it: another load brings it back."""
    deaths: int = 0
    """How many workers in a row have died while they built it again."""
    seconds: float = 0.0
    """How long the slowest worker took to build it at its load."""
    home: int | None = None
    """The one worker that builds it, while the others pass requests on; None: all build it."""
    complete: bytes | None = None
    """The configuration that its home has made of it."""
    receipt: str = ""
    """The digest of the receipt of its load, which spans name."""
    in_answers: bool = False
    """Whether answers name it, too."""

    @property
    def order(self) -> list[Any]:
        """The arguments of the call ``build``."""
        return [
            self.number,
            self.model,
            self.version,
            _text(self.config),
            self.root,
            self.fleeting,
            self.home is not None,
        ]

    def can_be_had(self, worker: int) -> bool:
        """Whether there is something for ``worker`` to do: while another one builds it, its home, there is not."""
        return self.home in (None, worker) or self.complete is not None

    @property
    def passed(self) -> list[Any]:
        """The arguments of the call ``pass_on``."""
        return [self.number, self.model, self.version, _text(self.complete or b""), self.root, self.home]


class Versions(Roster):
    """What the workers have been handed, and what they show."""

    def __init__(self, workers: Sequence[WorkerProcess], on_silent: Callable[[Sequence[WorkerProcess]], None]) -> None:
        """``on_silent`` gets the workers that are to be replaced, as they do not do something that others wait for."""
        super().__init__(workers)
        self._on_silent = on_silent
        self._handed: dict[int, Handed] = {}
        self._shown: dict[str, dict[int, int]] = {}
        """By model: the numbers of its versions that serve."""
        self._next = 0

    def build(
        self,
        model: str,
        version: int,
        config: bytes,
        root: str,
        *,
        fleeting: bool,
        cancelled: Callable[[], bool],
        homed: bool = False,
        calls: bool = False,
    ) -> tuple[Handed, dict[str, Any]]:
        """Have every worker build a version that is not shown yet, or, ``homed``, the home of the fewest; the answer of
        the first worker.

        Raises:
            CancelledError: ``cancelled`` became true; they have let go of it.
            RepoAgentError: one of them cannot build it, or is silent long after another one has, or all have died; the
                others have let go of it.
        """
        with self.lock:
            self._next += 1
            home = self.choose_home() if homed else None  # two loads at once must not find the same one free
            handed = Handed(self._next, model, version, config, root, fleeting, calls, home=home)
            chosen = self._workers if home is None else [self._workers[home]]
            members = [(worker, worker.calls) for worker in chosen if worker.calls is not None]
            if not members:
                raise UnavailableError(f"model '{model}' cannot be loaded: no worker process is there")
            self._handed[handed.number] = handed
        builds = [(worker, calls.begin("build", *handed.order)) for worker, calls in members]
        cancel = partial(self._ask_those, "cancel", handed.number, timeout=STEP_SECONDS)
        watch = _Watch(cancelled, cancel, [build for _, build in builds])
        answers: list[Any] = []
        silent: list[WorkerProcess] = []
        failure: RepoAgentError | None = None
        ended: RepoAgentError | None = None
        for worker, build in builds:
            try:
                answers.append(watch.result(build))
            except FutureTimeoutError:
                silent.append(worker)
                failure = failure or watch.late(worker.index, model)
            except Ended as error:  # If another one can build it, who takes its place does, too.
                if worker.index != LEAVING:
                    handed.deaths += 1
                ended = UnavailableError(f"{error} while it loaded model '{model}'")
            except RepoAgentError as error:
                failure = failure or error
        if watch.cancelled:
            failure = failure or _cancelled(model)
        first = answers[0] if answers else None
        if failure is None and isinstance(first, dict):
            handed.seconds = watch.seconds
            return handed, first
        self.close_version(handed, but=silent)
        if silent:
            self._on_silent(silent)
        raise failure or ended or InternalError(f"a worker process returned no description of model '{model}'")

    def have_or_replace(self, name: str, *arguments: Any) -> None:
        """Have all workers that serve do something. One that does not is replaced: its requests are not cut off."""
        late: list[WorkerProcess] = []
        with self.changing:  # A new worker that has what there was before is one of them, or is not there yet.
            serving = [one for one in self._workers if one.serves and one.index != LEAVING]
        self._ask_those(name, *arguments, timeout=STEP_SECONDS, of=serving, late=late)
        if late:
            self._on_silent(late)

    def prepare(self, *, calls: bool) -> None:
        """A version is about to be built; ``calls``: it may have others called. A worker that does not answer is ended
        before it has anything of the load, which goes on without it."""
        self._ask_those(*(("let_call",) if calls else ("running", 0)), timeout=STEP_SECONDS)

    def choose_home(self) -> int:
        """The worker that is the home of the fewest versions.

        Raises:
            UnavailableError: there is none.
        """
        with self.lock:
            serving = [worker.index for worker in self._workers if worker.serves and worker.index != LEAVING]
            homes = [handed.home for handed in self._handed.values()]
        if not serving:
            raise UnavailableError("no worker process is there")
        return min(serving, key=homes.count)

    def stateful(self, backend: str) -> bool:
        """Whether models of ``backend`` are better in one worker. Raises what a worker does that cannot find it."""
        return self.ask(self.choose_home(), "stateful", backend, timeout=STEP_SECONDS) is True

    def settle(self, handed: Handed, complete: bytes) -> None:
        """Have all workers but its ``home`` pass requests for a version on, whether or not they have built it, too. One
        that does not answer is ended: who takes its place passes them on.

        Raises:
            RepoAgentError: one of them cannot; all have let go of it.
        """
        with self.lock:
            handed.complete = complete
            others = [(one, one.calls) for one in self._workers if one.calls is not None and one.index != handed.home]
        asked = [(worker, calls, calls.begin("pass_on", *handed.passed)) for worker, calls in others]
        for worker, calls, one in asked:
            try:
                one.result(STEP_SECONDS)
            except FutureTimeoutError:
                logger.error(
                    "worker %d does not pass on requests for model '%s': it is ended", worker.index, handed.model
                )
                self._give_up(worker, calls)
            except RepoAgentError as error:
                if worker.index == LEAVING or isinstance(error, Ended):
                    continue
                self.close_version(handed)
                text = f"a worker cannot pass on requests for model '{handed.model}': {error}"
                raise UnavailableError(text) from error

    def homes(self) -> dict[tuple[str, int], int]:
        """The home of each version that is served and has one."""
        with self.lock:
            found = [self._handed.get(number) for shown in self._shown.values() for number in shown.values()]
        return {(one.model, one.version): one.home for one in found if one is not None and one.home is not None}

    def shown(self) -> set[tuple[str, str]]:
        """The models and versions that are served."""
        with self.lock:
            return {(model, str(version)) for model, shown in self._shown.items() for version in shown}

    def show(self, model: str, versions: Mapping[int, Handed]) -> None:
        """Serve these versions of ``model`` from now on, in all workers. A worker that does not is ended."""
        numbers = {version: handed.number for version, handed in versions.items()}
        with self.changing:
            self._ask_those("expect", model, timeout=STEP_SECONDS)
            with self.lock:
                self._shown[model] = numbers
            self._ask_those("show", model, self._entries(numbers), timeout=STEP_SECONDS)

    def retire(self, handed: Handed) -> None:
        """Let no new request of it in."""
        with self.changing:
            with self.lock:
                shown = self._shown.get(handed.model, {})
                if shown.get(handed.version) == handed.number:
                    del shown[handed.version]
                if not shown:
                    self._shown.pop(handed.model, None)
            self._ask_those("retire", handed.number, timeout=STEP_SECONDS)

    def running(self, handed: Handed) -> int:
        """How many of its requests are inside."""
        return sum(self._ask_those("running", handed.number, timeout=STEP_SECONDS, expected=is_count))

    def last_used_ms(self, handed: Handed) -> int:
        """When its last request ended, by the clock on the wall; 0 if it had none."""
        asked = self._ask_those("last_used_ms", handed.number, timeout=STEP_SECONDS, expected=is_count)
        return max(asked, default=0)

    def drain(self, handed: Handed, timeout: float | None) -> bool:
        """Wait until its last request has been answered; without a ``timeout``, for 300 seconds. A worker that does not
        answer is replaced."""
        timeout = _SLOWEST_SECONDS if timeout is None else timeout
        silent: list[WorkerProcess] = []
        if handed.home is not None:  # It takes what others pass on until all of that has come.
            others = [one for one in self._workers if one.index != handed.home]
            short = min(timeout, _PASSED_SECONDS)
            self._ask_those("drain", handed.number, short, timeout=short + LAST_SECONDS, of=others, late=silent)
        those = [one for one in self._workers if one not in silent]
        limit = timeout + LAST_SECONDS
        drained = all(self._ask_those("drain", handed.number, timeout, timeout=limit, of=those, late=silent))
        if silent:
            self._on_silent(silent)
        return drained and not silent

    def close_version(self, handed: Handed, but: Collection[WorkerProcess] = ()) -> None:
        """Have all workers let go of it, ``but`` those."""
        with self.lock:
            self._forget(handed)
            those = [worker for worker in self._workers if worker not in but]
        self._ask_those("close", handed.number, timeout=_SLOWEST_SECONDS, of=those)

    def _hand(self, worker: WorkerProcess, calls: Calls, handed: Handed) -> None:
        """Have a new worker build a version, or pass its requests on. Takes its time: the lock must not be held."""
        if handed.number not in self._handed:
            return
        if handed.calls:
            calls.call("let_call", timeout=STEP_SECONDS)
        if handed.home in (None, worker.index):
            try:
                calls.call("build", *handed.order, timeout=_patience(handed.seconds))
            except Ended as error:
                raise Ended(f"{error}, for model '{handed.model}'") from error
            except RepoAgentError:
                if handed.number in self._handed:
                    raise
                return  # It has been unloaded meanwhile, with its files.
        elif handed.can_be_had(worker.index):  # Else all workers hear of it when it has been built.
            calls.call("pass_on", *handed.passed, timeout=STEP_SECONDS)
        with self.changing:
            shown = self._shown.get(handed.model, {})
            if shown.get(handed.version) == handed.number:  # An ensemble is built over members that are shown.
                calls.call("show", handed.model, self._entries(shown), timeout=STEP_SECONDS)
            gone = handed.number not in self._handed
        if gone:  # The others have let go of it while this one built it.
            calls.call("close", handed.number, timeout=_SLOWEST_SECONDS)

    def _entries(self, numbers: Mapping[int, int]) -> list[list[Any]]:
        """Versions as the call ``show`` has them: each with its number and its receipt."""
        found = [(version, number, self._handed.get(number)) for version, number in numbers.items()]
        return [[*ids, one.receipt if one else "", one.in_answers if one else False] for *ids, one in found]

    def _is_shown(self, handed: Handed) -> bool:
        return self._shown.get(handed.model, {}).get(handed.version) == handed.number

    def _forget(self, handed: Handed) -> None:
        with self.lock:
            self._handed.pop(handed.number, None)


class _Watch:
    """Waits for ``builds``; calls ``cancel`` once when ``is_cancelled`` is true.

    The first one may take as long as the model's code wants. It shows how long the others may.
    """

    def __init__(
        self, is_cancelled: Callable[[], bool], cancel: Callable[[], object], builds: "Sequence[Future[Any]]"
    ) -> None:
        self._is_cancelled = is_cancelled
        self._cancel = cancel
        self._builds = builds
        self.cancelled = False
        self._started = time.monotonic()
        self._bounded = False
        self._end = math.inf

    @property
    def seconds(self) -> float:
        """How long it has waited."""
        return time.monotonic() - self._started

    def late(self, worker: int, model: str) -> RepoAgentError:
        """What the load fails with as a build had no result in time."""
        ended = "end the cancelled load" if self.cancelled else "build what another one has: the load"
        logger.error("worker %d does not %s of model '%s', and is replaced", worker, ended, model)
        text = f"worker {worker} has not loaded model '{model}' in time"
        return _cancelled(model) if self.cancelled else UnavailableError(text)

    def result(self, build: "Future[Any]") -> Any:
        """What ``build`` gives, or raises; TimeoutError long after it was cancelled, or another one was there."""
        while True:
            try:
                return build.result(_TICK_SECONDS)
            except FutureTimeoutError:
                if not self.cancelled and self._is_cancelled():
                    self.cancelled = True
                    self._end = time.monotonic() + _SLOWEST_SECONDS
                    self._cancel()
                if not self._bounded and any(one.done() and one.exception() is None for one in self._builds):
                    self._bounded = True
                    self._end = min(self._end, time.monotonic() + _patience(self.seconds))
                if time.monotonic() >= self._end:
                    raise


def _cancelled(model: str) -> RepoAgentError:
    return CancelledError(f"the load of model '{model}' was cancelled")


def _patience(seconds: float) -> float:
    """How long a worker has for what took others so long."""
    return max(_SLOWEST_SECONDS, _SLOWER * seconds)


def _text(config: bytes) -> str:
    """A configuration as a message has it."""
    return base64.b64encode(config).decode()
