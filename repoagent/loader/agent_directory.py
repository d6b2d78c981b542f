"""Agents that lie in ``--repoagent-directory``: ``DIR/NAME/agent.py``, or a native library as a stock Triton has it."""

import hashlib
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final, NoReturn

from repoagent.api.agent import Agent
from repoagent.errors import AgentError, AgentUnsupportedError, UnavailableError
from repoagent.installing import install_hint
from repoagent.loader.candidates import Candidate
from repoagent.storage.paths.names import is_text


@dataclass(frozen=True, slots=True)
class Code:
    """The code of one agent: its ``digest`` as a policy gives it, and what may be imported of it.

    ``files`` are real paths with their SHA-256 (hex). ``packages`` are the top-level modules that are wholly in
    ``files``; ``shared`` those that other distributions have a part in.
    """

    digest: str
    files: Mapping[str, str]
    packages: frozenset[str]
    shared: frozenset[str] = frozenset()


class PinnedCode(MetaPathFinder):
    """Finds modules of pinned packages before Python's own finders do. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, str] = {}
        self._packages: set[str] = set()
        self._shared: set[str] = set()

    def add(self, code: Code) -> None:
        """From now on import nothing of the packages of ``code`` but its files, unchanged.

        Modules that were imported before (by a plug-in of the same distribution) are imported again when they are
        needed next.
        """
        with self._lock:
            self._files.update(code.files)
            new = code.packages - self._packages
            self._packages |= code.packages
            self._shared |= code.shared
            if self not in sys.meta_path:
                sys.meta_path.insert(0, self)
        for name in [name for name in sys.modules if _top(name) in new]:
            del sys.modules[name]

    def clear(self) -> None:
        """Pin nothing any more; what was imported stays."""
        with self._lock:
            self._files.clear()
            self._packages.clear()
            self._shared.clear()
            if self in sys.meta_path:
                sys.meta_path.remove(self)

    def digest_of(self, file: Path) -> str | None:
        """The SHA-256 (hex) that ``file`` must have; None if it is not part of pinned code."""
        return self._files.get(os.path.realpath(file))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec that imports verified source, or None for a module that is not pinned."""
        if _top(fullname) not in self._packages | self._shared:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        return None if spec is None else self.secure(spec)

    def secure(self, spec: ModuleSpec) -> ModuleSpec:
        """``spec`` importing verified source if its package is pinned; ``ImportError`` if the file is not in it."""
        top = _top(spec.name)
        if top not in self._packages | self._shared or not spec.has_location or spec.origin is None:
            return spec
        digest = self._files.get(os.path.realpath(spec.origin))
        if digest is None and top in self._packages:
            raise ImportError(f"{spec.origin} is not part of the pinned code of '{top}'", name=spec.name)
        if digest is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _VerifiedLoader(spec.name, spec.origin, digest)
            spec.cached = None
        return spec


class _VerifiedLoader(SourceFileLoader):
    """Compiles the source that it verified; neither reads nor writes ``__pycache__``."""

    def __init__(self, fullname: str, path: str, digest: str) -> None:
        super().__init__(fullname, path)
        self._digest = digest

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path)
        if hashlib.sha256(source).hexdigest() != self._digest:
            raise ImportError(f"{self.path} was changed after it was verified", name=fullname)
        code: CodeType = self.source_to_code(source, self.path)
        return code


def _top(module_name: str) -> str:
    return module_name.partition(".")[0]


PINNED_CODE: Final = PinnedCode()
"""The one of this process, as there is one ``sys.meta_path``."""


DEFAULT_DIRECTORY: Final = Path("/opt/tritonserver/repoagents")
NATIVE_GROUP: Final = "repoagent.native_agents"
"""One entry point: a callable ``(name, library)`` that gives the agent in a library built for Triton."""

_MODULE_PREFIX = "_repoagent_directory_agent_"


def directory_candidates(directory: Path) -> Iterator[Candidate]:
    """What ``directory`` offers, by name. Imports nothing; other files and directories are passed over.

    One that may not be looked into offers an agent that cannot be used: what it hides is not for others to replace.
    Raises ``UnavailableError`` if ``directory`` cannot be read.
    """
    try:
        entries = sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UnavailableError(
            f"the repository-agent directory {directory} cannot be read: {error.strerror}"
        ) from error
    for entry in filter(lambda entry: is_text(entry.name), entries):
        try:
            yield from _offers(entry)
        except OSError as error:
            reason = f"{entry} cannot be read: {error.strerror}"
            yield Candidate(entry.name, "directory", str(entry), partial(_refuse, entry.name, reason))


def _offers(entry: Path) -> list[Candidate]:
    file, library = entry / "agent.py", native_library(entry)
    found = []
    if file.is_file():
        found.append(Candidate(entry.name, "directory", str(file), partial(_load_file, entry.name, file)))
    if library.is_file():
        found.append(Candidate(entry.name, "native", str(library), partial(_open_library, entry.name, library)))
    return found


def _refuse(name: str, reason: str) -> NoReturn:
    raise AgentError(name, reason)


def native_library(entry: Path) -> Path:
    """Where a stock Triton looks for the agent of the directory ``entry``."""
    return entry / f"libtritonrepoagent_{entry.name}.so"


def _open_library(name: str, library: Path) -> object:
    points = list(entry_points(group=NATIVE_GROUP))
    if not points:
        raise AgentUnsupportedError(
            name,
            f"{library} is a native agent, which needs the package repoagent-capi and a C compiler to build it; "
            f"{install_hint('repoagent-capi')}",
        )
    if len(points) > 1:
        raise AgentError(name, f"native agents are opened by {' and by '.join(point.value for point in points)}")
    try:
        open_library: Any = points[0].load()
    except ImportError as error:
        reason = f"{points[0].value} does not fit this program ({error}); build it again, "
        raise AgentUnsupportedError(name, reason + install_hint("repoagent-capi")) from error
    return open_library(name, library)


def _load_file(name: str, file: Path) -> object:
    module = _import_privately(name, file)
    if hasattr(module, "agent"):
        return module.agent
    return _only_agent_class(name, module, file)


def _import_privately(name: str, file: Path) -> ModuleType:
    """Run ``file`` as a package of its own, so that ``from . import helper`` finds the files beside it."""
    module = module_name(name)
    spec = importlib.util.spec_from_file_location(module, file, submodule_search_locations=[str(file.parent)])
    if spec is None or spec.loader is None:
        raise AgentError(name, f"{file} cannot be imported as Python source")
    PINNED_CODE.secure(spec)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded  # dataclasses, pickle and relative imports look it up there
    try:
        spec.loader.exec_module(loaded)
    except BaseException:
        del sys.modules[module]
        raise
    return loaded


def module_name(agent: str) -> str:
    """The name under which an agent of a directory is imported; two agents never share one."""
    return _MODULE_PREFIX + "".join(char if char.isalnum() else f"_{ord(char):x}_" for char in agent)


def _only_agent_class(name: str, module: ModuleType, file: Path) -> type[Agent]:
    classes = [
        found
        for found in vars(module).values()
        if isinstance(found, type) and issubclass(found, Agent) and found.__module__ == module.__name__
    ]
    if not classes:
        raise AgentError(name, f"{file} defines no subclass of repoagent.api.Agent")
    if len(classes) > 1:
        names = ", ".join(found.__name__ for found in classes)
        raise AgentError(name, f"{file} defines more than one agent ({names}); choose one with a line 'agent = ...'")
    return classes[0]
