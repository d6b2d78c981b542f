"""One place where an agent was found, and the check of what came out of it."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

from repoagent.api.agent import SUPPORTED_API_VERSIONS, Agent
from repoagent.errors import AgentError
from repoagent.loader.agent_methods import fault_in_methods, warn_of_misspelt_methods

__all__ = ["AgentSource", "Candidate", "LoadedAgent", "check_agent"]

LoadedAgent = type[Agent] | Agent
"""A class, of which one object is made per period of use, or an object to be used as it is."""


class AgentSource(Protocol):
    """Where the loader gets agents from; :class:`~repoagent.loader.discovery.AgentRegistry` is one."""

    def load(self, name: str) -> LoadedAgent:
        """The agent called ``name``.

        Raises:
            AgentError: there is none, or it cannot be used.
        """


@dataclass(frozen=True, slots=True)
class Candidate:
    """An agent that is offered under ``name``. Nothing has been imported yet.

    ``origin`` is "package", "directory" or "native"; ``target`` is ``module:attribute`` or a path. ``resolve`` imports
    and returns whatever is there; it may raise anything.
    """

    name: str
    origin: str
    target: str
    resolve: Callable[[], object]
    distribution: str | None = None
    version: str | None = None

    def __str__(self) -> str:
        """Where it comes from, for messages."""
        if self.distribution is None:
            return self.target
        return f"{self.target} of package {self.distribution} {self.version}"


def check_agent(name: str, found: object, where: str) -> LoadedAgent:
    """Return ``found`` if it is an agent that this program can run.

    Raises:
        AgentError: it is something else, was written for another version of the interface, or cannot be called.
    """
    kind = found if isinstance(found, type) else type(found)
    if not issubclass(kind, Agent):
        what = found.__name__ if isinstance(found, type) else f"an object of type {kind.__name__}"
        hint = "; an entry point is 'module:Class'" if isinstance(found, ModuleType) else ""
        raise AgentError(name, f"{where} gives {what}, which is not a subclass of repoagent.api.Agent{hint}")
    _check_api_version(name, kind, where)
    _check_guard(name, kind, where)
    _check_methods(name, kind, where)
    return found if isinstance(found, Agent) else kind


def _check_api_version(name: str, kind: type[Agent], where: str) -> None:
    supported = ", ".join(str(version) for version in sorted(SUPPORTED_API_VERSIONS))
    stated: object = getattr(kind, "api_version", None)
    if stated is None:
        raise AgentError(
            name,
            f"{where}: {kind.__name__} states no api_version; this program supports {supported}: "
            f"write api_version = {max(SUPPORTED_API_VERSIONS)} in the class",
        )
    if type(stated) is not int or stated not in SUPPORTED_API_VERSIONS:
        raise AgentError(
            name, f"{where}: {kind.__name__} was written for api_version {stated!r}; this program supports {supported}"
        )


def _check_guard(name: str, kind: type[Agent], where: str) -> None:
    guard = inspect.getattr_static(kind, "guard")
    if not isinstance(guard, bool | property):
        raise AgentError(name, f"{where}: {kind.__name__}.guard is {guard!r}; it must be True or False")


def _check_methods(name: str, kind: type[Agent], where: str) -> None:
    if fault := fault_in_methods(kind):
        raise AgentError(name, f"{where}: {fault}")
    warn_of_misspelt_methods(kind, where)
