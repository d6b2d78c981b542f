"""Agents and their models, wrapped so that every call passes a point at which a test can make something happen."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from repoagent.api import Action, Agent, AgentModel, Cache
from repoagent.loader.candidates import AgentSource, LoadedAgent, check_agent
from repoagent.testing.faults import FaultInjection


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
