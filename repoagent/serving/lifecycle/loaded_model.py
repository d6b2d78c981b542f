"""One load of one model: the chain of agents that brought it in, and the versions that came of it."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from repoagent.config import ModelConfig
from repoagent.loader.chain import LoadedChain
from repoagent.serving.ensembles.plan import member_names
from repoagent.serving.versions.served_model import ServedModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Origin:
    """What a load was asked for, as far as a later load of one version has to know it."""

    config: ModelConfig | None = None
    """Of the caller's own."""
    files: bool = False
    """The files were the caller's own, and are not kept."""
    pinned: frozenset[int] | None = None
    """Versions that were named; None: those of the version policy."""


class LoadedModel:
    """All versions of a model that one load brought up together. Immutable."""

    def __init__(
        self,
        chain: LoadedChain,
        versions: Mapping[int, ServedModel],
        key: object,
        origin: Origin = Origin(),
    ) -> None:
        self.chain = chain
        self.versions = versions
        self.key = key
        """What was loaded: a load with an equal key has nothing to do."""
        self.origin = origin
        """What was asked for."""
        self.by_name = {str(number): served for number, served in versions.items()}
        """Versions as requests name them; the empty name is the highest version."""
        self.by_name[""] = versions[max(versions)]
        self.members = frozenset().union(*(member_names(served.config) for served in versions.values()))
        """The models that it calls, if it is an ensemble."""

    @property
    def overridden(self) -> bool:
        """Whether the load came with a configuration of the request's."""
        return self.origin.config is not None

    def with_versions(self, versions: Mapping[int, ServedModel]) -> "LoadedModel":
        """The same load with other versions in the place of these, which have been made without its agents."""
        return LoadedModel(self.chain, versions, self.key, self.origin)

    def without_version(self, version: int) -> "LoadedModel | None":
        """The same load without one of its versions, and with the others until the next whole load; None: none is left.

        No agent is called: the chain stays, for the files of all versions are its own.
        """
        left = {number: served for number, served in self.versions.items() if number != version}
        return LoadedModel(self.chain, left, self.key, replace(self.origin, pinned=frozenset(left))) if left else None

    @property
    def running(self) -> int:
        """How many requests are still inside."""
        return sum(served.running for served in self.versions.values())

    @property
    def broken(self) -> bool:
        """Whether something of it has broken down for good."""
        return any(served.broken for served in self.versions.values())

    def without(self, successor: "LoadedModel | None") -> "Departure":
        """What goes when ``successor`` takes its place: the chain, and the versions that do not go on there."""
        staying = {id(served) for served in successor.versions.values()} if successor is not None else set()
        leaving = {version: served for version, served in self.versions.items() if id(served) not in staying}
        return Departure(self.chain, leaving)


class Departure:
    """Versions on their way out, and the chain that goes when they have gone; perhaps no version at all."""

    def __init__(self, chain: LoadedChain, versions: Mapping[int, ServedModel]) -> None:
        self.chain = chain
        self.versions = versions

    def retire(self) -> None:
        """Let no new request in."""
        for served in self.versions.values():
            served.retire()

    @property
    def running(self) -> int:
        """How many requests are still inside."""
        return sum(served.running for served in self.versions.values())

    def drain(self, deadline: float) -> None:
        """Wait for the requests inside, until ``deadline`` (``time.monotonic``) at the latest."""
        for version, served in self.versions.items():
            if not served.drain(max(0.0, deadline - time.monotonic())):
                logger.warning(
                    "model '%s' version %d is unloaded with %d requests still running",
                    served.name,
                    version,
                    served.running,
                )

    def close(self) -> None:
        """Let go of every version; no request is inside, or the time for it is over."""
        for version, served in self.versions.items():
            try:
                served.close()
            except Exception:
                logger.exception("closing model '%s' version %d failed", served.name, version)


class Retirements:
    """Models on their way out. One that is idle goes at once; one that is busy is waited for, ``limit_seconds`` at
    most, on a thread, which calls ``on_idle`` when no other one does."""

    def __init__(self, limit_seconds: float, on_idle: Callable[[], object] = lambda: None) -> None:
        self._limit = limit_seconds
        self._on_idle = on_idle
        self._latest = float("inf")
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()

    def begin(
        self, model: Departure, done: Callable[[], None] = lambda: None, *, tell_agents: bool = True
    ) -> threading.Event:
        """Drain and close ``model``, call its agents, then ``done``. The event returned is set after that."""
        finished = threading.Event()
        deadline = min(time.monotonic() + self._limit, self._latest)

        def finish() -> None:
            try:
                model.drain(deadline)
                model.close()
                if tell_agents:
                    model.chain.unload_complete()
                done()
            finally:
                finished.set()

        if not model.running:
            finish()
            return finished
        thread = threading.Thread(target=self._run, args=(finish,), name="repoagent-retire", daemon=True)
        with self._lock:
            self._threads.add(thread)
            try:
                thread.start()
            except RuntimeError as error:
                self._threads.discard(thread)
                logger.warning("no thread can be started to wait for a model's last requests (%s)", error)
            else:
                return finished
        finish()  # It holds the caller up, for up to the limit, but the agents must hear of the end.
        return finished

    def _run(self, finish: Callable[[], None]) -> None:
        try:
            finish()
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())
            if not self._threads:
                self._on_idle()

    def hurry(self, latest: float) -> None:
        """Those that begin from now on drain until ``latest`` (``time.monotonic``) at most."""
        self._latest = latest

    def wait(self, deadline: float) -> bool:
        """Wait for all of them until ``deadline`` (``time.monotonic``); False if some are not done."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)
