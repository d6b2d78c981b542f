"""Finding the backend that a model names."""

import importlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol, runtime_checkable

from repoagent.errors import AlreadyExistsError, InternalError, InvalidArgumentError, did_you_mean
from repoagent.installing import missing_backend
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.serving.instances.backend import Backend

logger = logging.getLogger(__name__)

BackendFactory = Callable[[Mapping[str, str]], Backend]
"""Makes a backend from its settings (``backend_config`` of the server)."""

BUILTIN_BACKENDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "onnxruntime": "repoagent.serving.backends.onnxruntime.backend:OnnxRuntimeBackend",
        "python": "repoagent.serving.backends.python.backend:PythonBackend",
        "tensorrt": "repoagent.serving.backends.tensorrt.backend:TensorRtBackend",
    }
)

_EVERY: Final = ""
"""In the place of a backend's name: its settings are for all backends, as in Triton."""


class _Settings(dict[str, str]):
    """Those of one backend, and those for all backends that it does not set itself."""

    def __init__(self, own: Mapping[str, str], everywhere: Mapping[str, str]) -> None:
        super().__init__({**everywhere, **own})
        self.own = frozenset(own)


class BackendRegistry:
    """Backends by name, each imported and made when the first model needs it, then kept."""

    def __init__(
        self,
        plugins: Mapping[str, str] | None = None,
        settings: Mapping[str, Mapping[str, str]] | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        for name in BUILTIN_BACKENDS.keys() & (plugins or {}).keys():
            raise AlreadyExistsError(
                f"backend '{name}' is built in ({BUILTIN_BACKENDS[name]}) and also offered by a plug-in "
                f"({(plugins or {})[name]})"
            )
        self._targets = {**BUILTIN_BACKENDS, **(plugins or {})}
        self._settings = settings or {}
        self._limits = limits
        for name in self._settings.keys() - self._targets.keys() - {_EVERY}:
            meant = did_you_mean(name, self._targets)
            logger.warning("--backend-config has settings of '%s', and no such backend is here%s", name, meant)
        self._core: object | None = None
        self._backends: dict[str, Backend] = {}
        self._lock = threading.Lock()

    def bind(self, core: object) -> None:
        """Let backends whose models call other models reach ``core``: those that have a method ``bind`` get it."""
        with self._lock:
            self._core = core
            for backend in self._backends.values():
                _bind(backend, core)

    def add(self, name: str, backend: Backend) -> None:
        """Offer a backend that already exists, as an embedder may. Raises ``AlreadyExistsError`` if the name is
        taken."""
        with self._lock:
            if name in self._targets or name in self._backends:
                raise AlreadyExistsError(f"there is already a backend '{name}'")
            _bind(backend, self._core)
            self._backends[name] = backend

    def names(self) -> list[str]:
        """Every backend that a model can name."""
        return sorted({*self._targets, *self._backends})

    def get(self, name: str) -> Backend:
        """The backend called ``name``.

        Raises:
            InvalidArgumentError: there is no such backend.
            InternalError: its code cannot be imported.
        """
        with self._lock:
            backend = self._backends.get(name)
            if backend is None:
                backend = self._backends[name] = self._make(name)
            return backend

    def require(self, name: str) -> None:
        """Refuse a backend that no model here can name; nothing is imported. Raises ``InvalidArgumentError`` if there
        is no such backend."""
        if name not in self._backends:
            self._target(name)

    def stateful(self, name: str) -> bool:
        """Whether all requests for a model of that backend had better come to one process. Raises as :meth:`get`."""
        return getattr(self.get(name), "stateful", False) is True

    def _target(self, name: str) -> str:
        target = self._targets.get(name)
        if target is not None:
            return target
        if missing := missing_backend(name):
            raise InvalidArgumentError(f"unable to find backend '{name}': {missing}")
        raise InvalidArgumentError(
            f"unable to find backend '{name}'; available are "
            f"{', '.join(self.names())}. Set 'backend' or 'platform' in the model configuration to one of these, "
            f"or install a package that offers it{did_you_mean(name, self.names())}"
        )

    def _make(self, name: str) -> Backend:
        target = self._target(name)
        module, _, attribute = target.partition(":")
        try:
            factory: BackendFactory = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise InternalError(f"backend '{name}' ({target}) cannot be imported: {error}") from error
        backend = factory(_Settings(self._settings.get(name, {}), self._settings.get(_EVERY, {})))
        if isinstance(backend, _Limited):
            backend.limits = self._limits
        _bind(backend, self._core)
        return backend


def warn_of_unknown(backend: str, settings: Mapping[str, str], known: Sequence[str]) -> None:
    """Log which ``settings`` of ``backend`` have no effect; Triton passes over them. Those for all backends are for
    others, where it does not know them."""
    own = settings.own if isinstance(settings, _Settings) else settings
    for name in sorted(set(own) - set(known)):
        meant = did_you_mean(name, known)
        logger.warning("--backend-config=%s,%s has no effect: there is no such setting%s", backend, name, meant)


@runtime_checkable
class _Limited(Protocol):
    limits: Limits
    """Those of the server, set before anything is asked of the backend."""


def _bind(backend: Backend, core: object | None) -> None:
    bind = getattr(backend, "bind", None)
    if core is not None and bind is not None:
        bind(core)
