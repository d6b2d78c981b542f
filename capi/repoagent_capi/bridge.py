"""Agents of this project in a stock Triton server.

Each entry of Triton's chain is one load here: a :class:`~repoagent.loader.loader.Loader` whose planner plans the one
agent, over the location that Triton gives. Workspaces, keys, cache, snapshots and reports are the loader's.
"""

import ctypes
import logging
import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from repoagent.api import Action, ArtifactType, ModelConfig
from repoagent.config import copy, read_json
from repoagent.errors import UnsupportedError
from repoagent.loader.chain import LoadedChain
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.load_context import Services
from repoagent.loader.loader import Loader
from repoagent.loader.plan import ConfigPlanner, PlannedAgent
from repoagent.loader.plugins import PluginManager, key_providers
from repoagent.storage.cache.cache import Cache
from repoagent.storage.files.files import MemoryFiles
from repoagent.storage.repositories.sources import open_source
from repoagent.storage.workspaces.workspace import WorkspaceRoot
from repoagent_capi.triton import Handles, LogHandler, error_of_exception, is_triton

logger = logging.getLogger("repoagent.bridge")

_INITIALIZE, _FINALIZE, _MODEL_INITIALIZE, _MODEL_FINALIZE = -1, -2, -3, -4


class _OneAgent(ConfigPlanner):
    """Plans the agent that Triton calls, with the parameters that it gives. Triton judges backends."""

    def __init__(self) -> None:
        self._now = threading.local()

    def next(self, agent: PlannedAgent) -> None:
        """What the next load of this thread is."""
        self._now.agent = agent

    def plan(self, model_name: str, config: ModelConfig | None, *, overridden: bool = False) -> Sequence[PlannedAgent]:
        """See :class:`~repoagent.loader.plan.ChainPlanner`."""
        agent: PlannedAgent = self._now.agent
        return [agent]


class _Bridge:
    """All bridged agents of this process share one loader; it lives while one of them does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._resources = ExitStack()
        self._planner = _OneAgent()
        self._loader: Loader | None = None
        self._chains: dict[int, LoadedChain] = {}
        self._names: dict[str, str] = {}
        """Where an entry left a model -> what that is called, as the directory there has another name."""

    def initialize(self) -> None:
        with self._lock:
            self._users += 1
            if self._loader is None:
                self._loader = self._open()

    def finalize(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._loader = None
                self._resources.close()

    def _open(self) -> Loader:
        resources = self._resources
        workspaces = resources.enter_context(WorkspaceRoot(allow_swap=_is_set("REPOAGENT_ALLOW_SWAP")))
        plugins = resources.enter_context(PluginManager())
        services = Services(
            cache=resources.enter_context(Cache(None)),
            key_providers=key_providers(plugins, allow_commands=_is_set("REPOAGENT_ALLOW_EXEC_KEYS")),
            filesystems=plugins.registry("filesystems"),
            notify=plugins.notify,
        )
        loader = Loader(AgentRegistry(None), workspaces, services, planner=self._planner)
        resources.callback(loader.close)
        return loader

    def act(self, name: str, handles: Handles, model: int, action: Action) -> None:
        if action is Action.LOAD:
            self._chains[model] = self._load(name, handles)
            return
        chain = self._chains.get(model)
        if chain is None:
            return  # LOAD was refused; its agent has got LOAD_FAIL.
        match action:
            case Action.LOAD_COMPLETE:
                chain.complete()
            case Action.LOAD_FAIL:
                chain.fail(UnsupportedError("the server did not load the model"))
            case Action.UNLOAD:
                chain.unload()
            case Action.UNLOAD_COMPLETE:
                chain.unload_complete()

    def model_finalize(self, model: int) -> None:
        chain = self._chains.pop(model, None)
        if chain is not None:
            self._names.pop(chain.location, None)
            chain.finish()

    def _load(self, name: str, handles: Handles) -> LoadedChain:
        assert self._loader is not None
        kind, location = handles.location()
        if kind is not ArtifactType.FILESYSTEM:
            raise UnsupportedError(f"agent '{name}' over the bridge needs a model in a directory of this machine")
        config = read_json(handles.config(), source="the server's configuration")
        config.name = config.name or self._names.get(location) or os.path.basename(location.rstrip("/"))
        config.ClearField("model_repository_agents")
        self._planner.next(PlannedAgent(name, handles.parameters()))
        chain = self._loader.load(open_source(config.name, location), override=copy(config))
        try:
            _check_that_triton_can(name, chain, config)
            if not chain.in_place:
                handles.update(chain.location)
                self._names[chain.location] = config.name
        except BaseException as error:
            chain.fail(error)
            raise
        return chain


def _check_that_triton_can(name: str, chain: LoadedChain, config: ModelConfig) -> None:
    """What a stock server would silently lose is an error at LOAD."""
    if isinstance(chain.files, MemoryFiles) or chain.source.is_remote:
        raise UnsupportedError(f"agent '{name}' hands the model over in memory or by URL, which Triton cannot load")
    if chain.config is not None and chain.config != config:
        raise UnsupportedError(
            f"agent '{name}' changed the configuration of model '{chain.name}', which Triton read before and does not "
            "read again; write that configuration into the repository"
        )


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes", "on")


_BRIDGE: Final = _Bridge()


def _call(name: bytes, agent: int, model: int, what: int) -> int | None:
    try:
        match what:
            case -1:
                _BRIDGE.initialize()
            case -2:
                _BRIDGE.finalize()
            case -3:
                pass
            case -4:
                _BRIDGE.model_finalize(model)
            case _:
                _BRIDGE.act(name.decode(), Handles(agent, model), model, Action(what))
    except BaseException as error:
        if not isinstance(error, Exception):
            logger.exception("the agent tried to end the server")
        return error_of_exception(error)
    return None


_FUNCTION: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(
    _call
)

CALL_ADDRESS: Final = ctypes.cast(_FUNCTION, ctypes.c_void_p).value
"""What the library in Triton calls."""

if is_triton():
    _logger: Final = logging.getLogger("repoagent")
    _logger.addHandler(LogHandler())
    _logger.setLevel(logging.INFO)
    _logger.propagate = False
