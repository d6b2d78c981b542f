"""One place where an agent was found, and the check of what came out of it."""

import inspect
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any, Final, Protocol

from repoagent.api.agent import SUPPORTED_API_VERSIONS, Agent
from repoagent.errors import AgentError

logger = logging.getLogger(__name__)

_CALLED: Final = MappingProxyType(
    {name: member for name, member in vars(Agent).items() if callable(member) and not name.startswith("_")}
)
"""The methods that the loader calls."""
_CLOSE: Final = 0.87
"""``finalise`` and ``load_completed`` are as close as that, ``upload`` and ``reload`` are not."""
_NEAR: Final = 0.8
"""``lod`` is as near as that to ``load``: enough for an agent with no other method that is called."""


def fault_in_methods(kind: type[Agent]) -> str:
    """Why no model could be loaded through ``kind``; empty if its methods can be called.

    An agent whose one method is misspelt would accept every model.
    """
    if all(getattr(kind, name) is base for name, base in _CALLED.items()):
        near = "".join(f"; did you mean '{name}' by '{wrong}'?" for wrong, name in _misspelt(kind, _NEAR))
        return f"{kind.__name__} lacks the methods that are called, at least one of: {', '.join(_CALLED)}{near}"
    for name, base in _CALLED.items():
        member = inspect.getattr_static(kind, name)
        if not callable(getattr(kind, name)):
            return f"{kind.__name__}.{name} is not a method but an object of type {type(member).__name__}"
        if isinstance(member, FunctionType) and not _takes(member, len(inspect.signature(base).parameters)):
            wanted = ", ".join(inspect.signature(base).parameters)
            return f"{kind.__name__}.{name} cannot be called as the loader does: write def {name}({wanted})"
    return ""


def warn_of_misspelt_methods(kind: type[Agent], where: str) -> None:
    """Log the methods of ``kind`` whose names are almost those of methods that are called."""
    for wrong, name in _misspelt(kind, _CLOSE):
        logger.warning("%s: %s.%s is never called; did you mean '%s'?", where, kind.__name__, wrong, name)


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True


def _misspelt(kind: type[Agent], cutoff: float) -> Iterator[tuple[str, str]]:
    for wrong, member in vars(kind).items():
        if isinstance(member, FunctionType) and not wrong.startswith("_") and not hasattr(Agent, wrong):
            letters = [name for name in _CALLED if sorted(name) == sorted(wrong)]
            for name in (letters or get_close_matches(wrong, _CALLED, n=1, cutoff=cutoff))[:1]:
                yield wrong, name


LoadedAgent = type[Agent] | Agent
"""A class, of which one object is made per period of use, or an object to be used as it is."""


class AgentSource(Protocol):
    """Where the loader gets agents from; :class:`~repoagent.loader.discovery.AgentRegistry` is one."""

    def load(self, name: str) -> LoadedAgent:
        """The agent called ``name``; raises ``AgentError`` if there is none, or it cannot be used."""


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
    """``found`` if it is an agent that this program can run, else ``AgentError``: something else, one for another
    version of the interface, or one that cannot be called."""
    kind = found if isinstance(found, type) else type(found)
    if not issubclass(kind, Agent):
        what = found.__name__ if isinstance(found, type) else f"an object of type {kind.__name__}"
        hint = "; an entry point is 'module:Class'" if isinstance(found, ModuleType) else ""
        raise AgentError(name, f"{where} gives {what}, which is not a subclass of repoagent.api.Agent{hint}")
    _check_api_version(name, kind, where)
    guard = inspect.getattr_static(kind, "guard")
    if not isinstance(guard, bool | property):
        raise AgentError(name, f"{where}: {kind.__name__}.guard is {guard!r}; it must be True or False")
    if fault := fault_in_methods(kind):
        raise AgentError(name, f"{where}: {fault}")
    warn_of_misspelt_methods(kind, where)
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
