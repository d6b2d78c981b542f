"""Making something go wrong at a named point of a load: in an agent, in what it asks its model for, in the storage."""

import importlib
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast
from unittest.mock import patch

from repoagent.api import Action, Agent, AgentModel, Cache
from repoagent.loader.candidates import AgentSource, LoadedAgent, check_agent
from repoagent.storage.workspaces.process_dir import free_bytes

STORAGE_POINTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "start": "repoagent.storage.workspaces.process_dir:sweep",
        "process directory": "repoagent.storage.workspaces.process_dir:ProcessDirectory",
        "workspace directory": "repoagent.storage.workspaces.workspace:Workspace.directory",
        "workspace close": "repoagent.storage.workspaces.workspace:Workspace.close",
        "snapshot": "repoagent.storage.transfer.snapshot:snapshot",
        "snapshot file": "repoagent.storage.transfer.snapshot:_Copying._file",
        "download": "repoagent.storage.transfer.localize:localize",
        "download part": "repoagent.storage.transfer.partial_file:PartialFile.write",
        "download check": "repoagent.storage.transfer.localize:check_unchanged",
        "download publish": "repoagent.storage.cache.blob_store:BlobStore._publish",
        "cache build": "repoagent.storage.cache.cache_store:CacheStore.build",
        "cache publish": "repoagent.storage.cache.cache_store:CacheStore._publish",
        "cache sync": "repoagent.storage.paths.trees:sync_tree",
        "cache sync directory": "repoagent.storage.cache.cache_store:_sync_directory",
        "remove tree": "repoagent.storage.paths.trees:remove_tree",
        "remove entry": "repoagent.storage.paths.trees:_remove_entry",
    }
)
"""What happens in the storage that a test may want to interrupt, and the function that does it."""

AGENT_POINTS: Final = frozenset(
    {
        *(action.name for action in Action),
        *("initialize", "model_initialize", "model_finalize", "finalize"),
        *(name for name, member in vars(AgentModel).items() if callable(member) and not name.startswith("_")),
        *("cache", "cancelled"),
    }
)
"""The calls of an agent, and what it may ask its model for."""

_POINT: Final = re.compile(r"(?P<after>after )?(?P<name>\S+ \S[^#]*?)( #(?P<count>[1-9][0-9]*))?")


@dataclass(frozen=True, slots=True)
class Point:
    """One moment: the ``count``-th time that the call ``name`` begins, or ends if ``after``."""

    name: str
    after: bool = False
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> "Point":
        """Read the notation above.

        Raises:
            ValueError: it is not in this notation, or names a call that does not exist.
        """
        match = _POINT.fullmatch(text)
        if match is None:
            raise ValueError(
                f"'{text}' is not a point; expected '[after ]SUBJECT CALL[ #N]', e.g. 'after mine LOAD #2'"
            )
        subject, _, call = match["name"].partition(" ")
        if subject == "storage" and call not in STORAGE_POINTS:
            raise ValueError(f"there is no storage point '{call}'; there are: {', '.join(STORAGE_POINTS)}")
        if subject != "storage" and call not in AGENT_POINTS:
            raise ValueError(f"an agent has no call '{call}'; there are: {', '.join(sorted(AGENT_POINTS))}")
        return cls(match["name"], match["after"] is not None, int(match["count"] or 1))

    def __str__(self) -> str:
        return f"{'after ' * self.after}{self.name}{f' #{self.count}' if self.count > 1 else ''}"


class InjectedError(Exception):
    """What :meth:`FaultInjection.fail` raises if no other error is given."""


class FaultInjection:
    """Faults, each at a point (:mod:`repoagent.testing.faults`), and a record of the points that were passed.

    Give it to an :class:`~repoagent.testing.AgentHarness`. A fault happens once, when its point is reached.
    Thread-safe.
    """

    def __init__(self) -> None:
        self.room: int | None = None
        """The free bytes that workspaces pretend to have; None: what there is. For a full disk or tmpfs."""
        self._lock = threading.Lock()
        self._planned: dict[Point, Callable[[], object]] = {}
        self._passed: list[Point] = []
        self._counts: dict[tuple[str, bool], int] = {}
        self._cancelled = threading.Event()

    def at(self, point: str, do: Callable[[], object]) -> None:
        """Call ``do`` at ``point``, on the thread that gets there; what it raises is raised there.

        Raises:
            ValueError: ``point`` is not the name of one.
        """
        with self._lock:
            self._planned[Point.parse(point)] = do

    def fail(self, point: str, error: BaseException | None = None) -> None:
        """Raise ``error`` at ``point``: before the call, which then does not happen, or after it."""
        failure = error if error is not None else InjectedError(f"injected at '{point}'")

        def fail() -> None:
            raise failure

        self.at(point, fail)

    def cancel(self, point: str) -> None:
        """The load is cancelled at ``point``."""
        self.at(point, self._cancelled.set)

    def kill(self, point: str) -> None:
        """End this process at ``point`` with SIGKILL; :class:`~repoagent.testing.KillHarness` does it in a child."""
        self.at(point, lambda: os.kill(os.getpid(), signal.SIGKILL))

    def reset(self) -> None:
        """Forget all faults and all points that were passed."""
        with self._lock:
            self._planned.clear()
            self._passed.clear()
            self._counts.clear()
            self._cancelled.clear()
            self.room = None

    @property
    def passed(self) -> list[str]:
        """Every point that was passed so far, in order, with counts: what can be named here."""
        with self._lock:
            return [str(point) for point in self._passed]

    def cancelled(self) -> bool:
        """Whether a :meth:`cancel` point was reached; the harness hands this to the loader."""
        return self._cancelled.is_set()

    def free_bytes(self, path: Path) -> int | None:
        """:attr:`room`, or what is really free; the harness hands this to its workspaces."""
        return free_bytes(path) if self.room is None else self.room

    def reach(self, name: str, *, after: bool = False) -> None:
        """The program is at the point ``name``: do what is planned for it. The harness calls this."""
        with self._lock:
            count = self._counts.get((name, after), 0) + 1
            self._counts[name, after] = count
            point = Point(name, after, count)
            self._passed.append(point)
            planned = self._planned.pop(point, None)
        if planned is not None:
            planned()


class TestedAgents:
    """Where a harness finds agents: those that the test brings, then those of ``others``; all of them watched."""

    __test__ = False  # pytest: no tests in here

    def __init__(self, own: Mapping[str, LoadedAgent], others: AgentSource, faults: FaultInjection) -> None:
        self._own = dict(own)
        self._others = others
        self._faults = faults

    def add(self, name: str, agent: LoadedAgent) -> None:
        """Offer ``agent`` under ``name``."""
        self._own[name] = agent

    def load(self, name: str) -> LoadedAgent:
        """The agent called ``name``, watched. Raises as the registry does."""
        own = self._own.get(name)
        found = (
            check_agent(name, own, f"the agent '{name}' of this test") if own is not None else self._others.load(name)
        )
        return _watched(name, found, self._faults)


def _watched(name: str, found: LoadedAgent, faults: FaultInjection) -> type[Agent]:
    """A class that makes or takes the real agent and reports every call."""

    class Watched(Agent):
        api_version = found.api_version
        guard = found.guard
        compares_digests = found.compares_digests
        judges_digests = found.judges_digests
        reads_once = found.reads_once

        def __init__(self) -> None:
            self._agent = found() if isinstance(found, type) else found
            self._models: dict[int, AgentModel] = {}

        def initialize(self) -> None:
            return self._pass("initialize", self._agent.initialize)

        def finalize(self) -> None:
            return self._pass("finalize", self._agent.finalize)

        def model_initialize(self, model: AgentModel) -> None:
            seen = self._models[id(model)] = cast(AgentModel, _WatchedModel(name, model, faults))
            return self._pass("model_initialize", partial(self._agent.model_initialize, seen))

        def model_finalize(self, model: AgentModel) -> None:
            seen = self._models.pop(id(model))
            return self._pass("model_finalize", partial(self._agent.model_finalize, seen))

        def model_action(self, model: AgentModel, action: Action) -> None:
            return self._pass(action.name, partial(self._agent.model_action, self._models[id(model)], action))

        def _pass(self, what: str, call: Callable[[], None]) -> None:
            # Handed on, as the loader refuses an agent that returns something.
            returned: None = _passing(faults, f"{name} {what}", call)
            return returned

    return Watched


def _passing(faults: FaultInjection, name: str, call: Callable[[], object]) -> Any:
    faults.reach(name)
    result = call()
    faults.reach(name, after=True)
    return result


class _WatchedModel:
    """Everything of the real model; what is called, the cache and ``cancelled`` are points."""

    __slots__ = ("_agent", "_faults", "_model")

    def __init__(self, agent: str, model: AgentModel, faults: FaultInjection) -> None:
        object.__setattr__(self, "_agent", agent)
        object.__setattr__(self, "_model", model)
        object.__setattr__(self, "_faults", faults)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._model, name, value)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._model, name)
        point = f"{self._agent} {name}"
        if name == "cache":
            return _WatchedCache(point, value, self._faults)
        if name == "state":
            return value
        if callable(value):
            return lambda *args, **kwargs: _passing(self._faults, point, partial(value, *args, **kwargs))
        if name == "cancelled":
            # Asked again: at this point a test may have cancelled the load.
            return _passing(self._faults, point, lambda: None) or self._model.cancelled
        return value


class _WatchedCache:
    def __init__(self, point: str, cache: Cache, faults: FaultInjection) -> None:
        self._point = point
        self._cache = cache
        self._faults = faults

    def get_or_build(self, key: str, build: Callable[[Path], None]) -> Path:
        path: Path = _passing(self._faults, self._point, partial(self._cache.get_or_build, key, build))
        return path


@contextmanager
def storage_points(faults: FaultInjection) -> Iterator[None]:
    """For a block, ``faults`` hears of each call of :data:`STORAGE_POINTS`.

    The wrapping holds for the whole process: one such block at a time.
    """
    with ExitStack() as stack:
        for name, target in STORAGE_POINTS.items():
            for owner, attribute, function in _places(target):
                stack.enter_context(patch.object(owner, attribute, _wrapped(function, f"storage {name}", faults)))
        yield


def _places(target: str) -> Iterator[tuple[object, str, Callable[..., Any]]]:
    """Everywhere that the function is found: its class, or each module that has imported it."""
    module_name, _, path = target.partition(":")
    module = importlib.import_module(module_name)
    owner, _, attribute = path.rpartition(".")
    if owner:
        kind = getattr(module, owner)
        yield kind, attribute, getattr(kind, attribute)
        return
    function: Callable[..., Any] = getattr(module, attribute)
    users: list[object] = [module for name, module in list(sys.modules.items()) if name.startswith("repoagent.")]
    for user in users:
        if vars(user).get(attribute) is function:
            yield user, attribute, function


def _wrapped(function: Callable[..., Any], name: str, faults: FaultInjection) -> Callable[..., Any]:
    @wraps(function, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        faults.reach(name)
        result = function(*args, **kwargs)
        faults.reach(name, after=True)
        return result

    return wrapper
