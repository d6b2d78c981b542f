"""Which agents there are, and how a name in a configuration becomes a class."""

import difflib
import inspect
import logging
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, metadata
from pathlib import Path
from typing import Final

from repoagent.errors import AgentError, AgentNotFoundError, NotFoundError
from repoagent.installing import install_hint
from repoagent.loader.agent_directory import DEFAULT_DIRECTORY, directory_candidates
from repoagent.loader.candidates import Candidate, LoadedAgent, check_agent

logger = logging.getLogger("repoagent.loader")


AGENTS_GROUP = "repoagent.agents"
_SHOWN = ("Name", "Version", "Summary", "Author", "Author-email", "License-Expression", "License", "Home-page")


def package_candidates(group: str = AGENTS_GROUP) -> Iterator[Candidate]:
    """Everything the group offers, in the order the packages are found. Imports nothing."""
    for point in entry_points(group=group):
        yield Candidate(
            name=point.name,
            origin="package",
            target=point.value,
            resolve=partial(_resolve, point),
            distribution=point.dist.name if point.dist else None,
            version=point.dist.version if point.dist else None,
        )


def _resolve(point: EntryPoint) -> object:
    if point.pattern.match(point.value) is None:
        owner = f" of package {point.dist.name}" if point.dist else ""
        text = f"the entry point {point.value!r}{owner} is not valid; an entry point is 'module:Class'"
        raise AgentError(point.name, text)
    return point.load()


def distribution_metadata(distribution: str) -> dict[str, str]:
    """The fields of an installed distribution's metadata that a person wants to see; empty if it is gone."""
    try:
        fields = metadata(distribution)
    except PackageNotFoundError:
        return {}
    return {key: fields[key] for key in _SHOWN if key in fields}


_Found = dict[str, list[Candidate]]


OFFICIAL_AGENTS: Final = ("checksum", "convert", "decrypt", "fetch", "license", "scan", "verify")
"""Names whose package is ``repoagent-NAME``: a message about one that is missing states how to get it, and no agent of
others should take one."""


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """One line of ``repoagent agents list``.

    ``origin`` is "package", "directory" or "native"; ``target`` is ``module:attribute`` or a path; ``state`` is
    "available", "loaded" (imported by this process) or "error", with the reason in ``error``.
    """

    name: str
    version: str | None
    distribution: str | None
    origin: str
    target: str
    state: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class AgentDetails:
    """What ``repoagent agents inspect NAME`` shows. ``metadata`` is empty for an agent of a directory."""

    info: AgentInfo
    class_name: str
    docstring: str
    api_version: int
    guard: bool
    module_file: str | None
    metadata: Mapping[str, str]


class AgentRegistry:
    """Every agent that is installed or lies in ``directory``, found without importing any.

    The installed packages are looked through once, on first use; the directory each time a name is not known yet, so
    an agent can be added while the server runs. An agent that ``preferred`` names is that of the directory, though a
    package offers it too. Safe to use from any thread.

    Raises:
        NotFoundError: ``directory`` does not exist and is not the default one.
    """

    def __init__(
        self,
        directory: Path | None = DEFAULT_DIRECTORY,
        *,
        preferred: Collection[str] = (),
        group: str = AGENTS_GROUP,
    ) -> None:
        if directory is not None and directory != DEFAULT_DIRECTORY and not directory.is_dir():
            raise NotFoundError(f"the repository-agent directory {directory} does not exist")
        self._directory = directory
        self._preferred = frozenset(preferred)
        self._group = group
        self._lock = threading.RLock()
        self._packages: tuple[Candidate, ...] | None = None
        self._loaded: dict[str, LoadedAgent] = {}
        self._imports: dict[str, threading.RLock] = {}
        """Held while an agent is imported, which may take long: others are found and imported meanwhile."""
        self._errors: dict[str, str] = {}

    def list(self) -> list[AgentInfo]:
        """All agents by name. Imports nothing; a name with two origins is shown in state "error"."""
        with self._lock:
            found = self._candidates()
            return [self._info(name, found[name]) for name in sorted(found)]

    def find(self, name: str) -> AgentInfo:
        """The agent called ``name``, without importing it. ``AgentNotFoundError`` suggests a name or a package and
        lists what there is."""
        with self._lock:
            return self._info(name, self._find(name))

    def load(self, name: str) -> LoadedAgent:
        """Import the agent called ``name``; the same class or object each time.

        Raises:
            AgentNotFoundError: there is none.
            AgentError: two origins claim the name, the import failed, or what came is not an agent for this program.
        """
        with self._lock:
            if name in self._loaded:
                return self._loaded[name]
            candidates = self._find(name)
            importing = self._imports.setdefault(name, threading.RLock())
        with importing:
            found = self._loaded.get(name)
            return self._load(name, candidates) if found is None else found

    def inspect(self, name: str) -> AgentDetails:
        """Import the agent and describe it. Raises as :meth:`load`."""
        found = self.load(name)
        info = self.find(name)
        kind = found if isinstance(found, type) else type(found)
        return AgentDetails(
            info=info,
            class_name=kind.__qualname__,
            docstring=inspect.cleandoc(kind.__doc__ or ""),  # its own: getdoc would give that of Agent
            api_version=kind.api_version,
            guard=found.guard,
            module_file=inspect.getsourcefile(kind),
            metadata=distribution_metadata(info.distribution) if info.distribution else {},
        )

    def _load(self, name: str, candidates: Sequence[Candidate]) -> LoadedAgent:
        if len(candidates) > 1:
            raise AgentError(name, _clash(candidates))
        try:
            loaded = _import(name, candidates[0])
        except AgentError as error:
            self._remember(name, error)
            raise
        with self._lock:
            self._errors.pop(name, None)
            self._loaded[name] = loaded
        return loaded

    def _remember(self, name: str, error: AgentError) -> None:
        """Keep the reason for :meth:`list`; log what an import raised, but only when it is news.

        The end of a load logs every other reason, which needs no traceback.
        """
        if self._errors.get(name) != error.reason and error.__cause__ is not None:
            logger.error("agent '%s' cannot be used: %s", name, error.reason, exc_info=error.__cause__)
        self._errors[name] = error.reason

    def _candidates(self) -> _Found:
        if self._packages is None:
            self._packages = tuple(package_candidates(self._group))
        nearby = directory_candidates(self._directory) if self._directory is not None else ()
        found: _Found = {}
        # One that is preferred and not there is not replaced by the package: it may be the stricter one.
        packages = (candidate for candidate in self._packages if candidate.name not in self._preferred)
        for candidate in (*packages, *nearby):
            found.setdefault(candidate.name, []).append(candidate)
        return found

    def _find(self, name: str) -> Sequence[Candidate]:
        found = self._candidates()
        if name not in found:
            raise AgentNotFoundError(name, _not_found(name, found, self._directory))
        return found[name]

    def _info(self, name: str, candidates: Sequence[Candidate]) -> AgentInfo:
        first = candidates[0]
        error = _clash(candidates) if len(candidates) > 1 else self._errors.get(name)
        state = "error" if error else "loaded" if name in self._loaded else "available"
        return AgentInfo(name, first.version, first.distribution, first.origin, first.target, state, error)


def _import(name: str, candidate: Candidate) -> LoadedAgent:
    try:
        found = candidate.resolve()
    except AgentError:
        raise
    except BaseException as error:  # a module may raise anything, also SystemExit; only this agent is lost
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise AgentError(name, f"cannot import {candidate}: {reason}") from error
    return check_agent(name, found, candidate.target)


def _clash(candidates: Iterable[Candidate]) -> str:
    return f"is offered more than once, remove all but one: {'; '.join(str(candidate) for candidate in candidates)}"


def _not_found(name: str, installed: Iterable[str], directory: Path | None) -> str:
    names = sorted(installed)
    parts = ["no such agent in the installed packages" + (f" or in {directory}" if directory is not None else "")]
    close = difflib.get_close_matches(name, sorted({*names, *OFFICIAL_AGENTS}), n=1)
    meant = close[0] if close else None
    if meant is not None and meant != name:
        parts.append(f"did you mean '{meant}'")
    if meant in OFFICIAL_AGENTS and meant not in names:
        parts.append(f"to get it, {install_hint(f'repoagent-{meant}')}")
    parts.append(f"installed agents: {', '.join(names) or 'none'}")
    return "; ".join(parts)
