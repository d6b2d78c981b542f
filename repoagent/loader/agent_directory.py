"""Agents that lie in ``--repoagent-directory``: ``DIR/NAME/agent.py``, or a native library as a stock Triton has it."""

import importlib.util
import sys
from collections.abc import Iterator
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

from repoagent.api.agent import Agent
from repoagent.errors import AgentError, AgentUnsupportedError, UnavailableError
from repoagent.installing import install_hint
from repoagent.loader.candidates import Candidate
from repoagent.loader.pinned_code import PINNED_CODE
from repoagent.storage.paths.names import is_text

DEFAULT_DIRECTORY: Final = Path("/opt/tritonserver/repoagents")
NATIVE_GROUP: Final = "repoagent.native_agents"
"""One entry point: a callable ``(name, library)`` that gives the agent in a library built for Triton."""

_MODULE_PREFIX = "_repoagent_directory_agent_"


def directory_candidates(directory: Path) -> Iterator[Candidate]:
    """What ``directory`` offers, by name. Imports nothing; other files and directories are passed over.

    One that may not be looked into offers an agent that cannot be used: what it hides is not for others to replace.

    Raises:
        UnavailableError: ``directory`` cannot be read.
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
    python, native = (entry / "agent.py").is_file(), native_library(entry).is_file()
    return [*([_python_candidate(entry)] if python else []), *([_native_candidate(entry)] if native else [])]


def _refuse(name: str, reason: str) -> NoReturn:
    raise AgentError(name, reason)


def native_library(entry: Path) -> Path:
    """Where a stock Triton looks for the agent of the directory ``entry``."""
    return entry / f"libtritonrepoagent_{entry.name}.so"


def _python_candidate(entry: Path) -> Candidate:
    file = entry / "agent.py"
    return Candidate(entry.name, "directory", str(file), partial(_load_file, entry.name, file))


def _native_candidate(entry: Path) -> Candidate:
    library = native_library(entry)
    return Candidate(entry.name, "native", str(library), partial(_open_library, entry.name, library))


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
