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
from typing import Any, Final

from repoagent.api import Action, ArtifactType, ModelConfig, Parameters
from repoagent.config import copy, read_json
from repoagent.errors import ErrorCode, RepoAgentError, UnsupportedError, error_of
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

logger = logging.getLogger("repoagent.bridge")

_VOID: Final = ctypes.c_void_p
_TEXT: Final = ctypes.c_char_p
_LEVELS: Final = ((logging.ERROR, 2), (logging.WARNING, 1), (logging.INFO, 0))
_library: Any = ctypes.CDLL(None)
"""The Triton server that this process is."""


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_library, name)
    function.restype, function.argtypes = result, arguments
    return function


_error_new = _function("TRITONSERVER_ErrorNew", _VOID, ctypes.c_int, _TEXT)
_error_delete = _function("TRITONSERVER_ErrorDelete", None, _VOID)
_error_code = _function("TRITONSERVER_ErrorCode", ctypes.c_int, _VOID)
_error_message = _function("TRITONSERVER_ErrorMessage", _TEXT, _VOID)
_log = _function("TRITONSERVER_LogMessage", _VOID, ctypes.c_int, _TEXT, ctypes.c_int, _TEXT)
_to_json = _function("TRITONSERVER_MessageSerializeToJson", _VOID, _VOID, _VOID, _VOID)
_message_delete = _function("TRITONSERVER_MessageDelete", _VOID, _VOID)
_location = _function("TRITONREPOAGENT_ModelRepositoryLocation", _VOID, _VOID, _VOID, _VOID, _VOID)
_update = _function("TRITONREPOAGENT_ModelRepositoryUpdate", _VOID, _VOID, _VOID, ctypes.c_int, _TEXT)
_count = _function("TRITONREPOAGENT_ModelParameterCount", _VOID, _VOID, _VOID, _VOID)
_parameter = _function("TRITONREPOAGENT_ModelParameter", _VOID, _VOID, _VOID, ctypes.c_uint32, _VOID, _VOID)
_config = _function("TRITONREPOAGENT_ModelConfig", _VOID, _VOID, _VOID, ctypes.c_uint32, _VOID)


def _check(error: int | None) -> None:
    if error is None:
        return
    code, text = _error_code(error), _error_message(error)
    _error_delete(error)
    raise error_of(code, text.decode(errors="surrogateescape"))


def _error_of_exception(error: BaseException) -> int | None:
    """A new error of Triton's; Triton deletes it."""
    code = error.code if isinstance(error, RepoAgentError) else ErrorCode.INTERNAL
    made: int | None = _error_new(int(code), (str(error) or type(error).__name__).encode(errors="surrogateescape"))
    return made


def _is_triton() -> bool:
    """Whether the server is Triton, and not this project's own, whose log takes what is logged here anyway."""
    return not hasattr(_library, "repoagent_core_install")


class _Handles:
    """One model that Triton calls an agent for."""

    def __init__(self, agent: int, model: int) -> None:
        self._agent = agent
        self._model = model

    def location(self) -> tuple[ArtifactType, str]:
        """Where the model is now."""
        kind, text = ctypes.c_int(), ctypes.c_char_p()
        _check(_location(self._agent, self._model, ctypes.byref(kind), ctypes.byref(text)))
        return ArtifactType(kind.value), (text.value or b"").decode(errors="surrogateescape")

    def update(self, location: str) -> None:
        """Let the agents that follow, and the server, use another directory."""
        _check(_update(self._agent, self._model, 0, location.encode(errors="surrogateescape")))

    def parameters(self) -> Parameters:
        """What the configuration gives this agent, in Triton's order."""
        count, name, value = ctypes.c_uint32(), ctypes.c_char_p(), ctypes.c_char_p()
        _check(_count(self._agent, self._model, ctypes.byref(count)))
        pairs = []
        for index in range(count.value):
            _check(_parameter(self._agent, self._model, index, ctypes.byref(name), ctypes.byref(value)))
            pairs.append(tuple((text.value or b"").decode(errors="surrogateescape") for text in (name, value)))
        return Parameters((key, text) for key, text in pairs)

    def config(self) -> bytes:
        """The configuration as JSON."""
        message, text, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
        _check(_config(self._agent, self._model, 1, ctypes.byref(message)))
        try:
            _check(_to_json(message, ctypes.byref(text), ctypes.byref(size)))
            return ctypes.string_at(text.value or 0, size.value)
        finally:
            _error_delete(_message_delete(message))


class _LogHandler(logging.Handler):
    """Writes what this project logs into Triton's log."""

    def emit(self, record: logging.LogRecord) -> None:
        """See :class:`logging.Handler`."""
        level = next((number for least, number in _LEVELS if record.levelno >= least), 3)
        text = self.format(record).encode(errors="replace")
        _error_delete(_log(level, record.filename.encode(errors="replace"), record.lineno, text))


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

    def act(self, name: str, handles: _Handles, model: int, action: Action) -> None:
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

    def _load(self, name: str, handles: _Handles) -> LoadedChain:
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
                _BRIDGE.act(name.decode(), _Handles(agent, model), model, Action(what))
    except BaseException as error:
        if not isinstance(error, Exception):
            logger.exception("the agent tried to end the server")
        return _error_of_exception(error)
    return None


_FUNCTION: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(
    _call
)

CALL_ADDRESS: Final = ctypes.cast(_FUNCTION, ctypes.c_void_p).value
"""What the library in Triton calls."""

if _is_triton():
    _logger: Final = logging.getLogger("repoagent")
    _logger.addHandler(_LogHandler())
    _logger.setLevel(logging.INFO)
    _logger.propagate = False
