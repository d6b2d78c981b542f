"""ONNX Runtime's GPU providers: those built into it, and those in libraries that the operator names.

A model chooses among them with ``optimization.execution_accelerators``. Its parameters are taken from a list: some of
ONNX Runtime's own name files to write or libraries to load, which is not for a model to decide.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import onnxruntime

from repoagent.errors import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

logger = logging.getLogger(__name__)

_CUDA: Final = "CUDAExecutionProvider"
_TENSORRT: Final = "TensorrtExecutionProvider"
_RTX: Final = "NvTensorRTRTXExecutionProvider"
_OF_ACCELERATOR: Final = MappingProxyType({"cuda": _CUDA, "tensorrt": _TENSORRT, "nv_tensorrt_rtx": _RTX})
_PREFERRED: Final = (_CUDA, _RTX, _TENSORRT)
"""Where the configuration names none."""
_PARAMETERS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        _CUDA: {one: one for one in ("arena_extend_strategy", "cudnn_conv_algo_search", "gpu_mem_limit", "use_tf32")},
        _TENSORRT: {
            "max_workspace_size_bytes": "trt_max_workspace_size",
            "builder_optimization_level": "trt_builder_optimization_level",
            "cuda_graph": "trt_cuda_graph_enable",
        },
        _RTX: {"max_workspace_size_bytes": "nv_max_workspace_size", "cuda_graph": "enable_cuda_graph"},
    }
)
_CACHES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        _TENSORRT: {"trt_engine_cache_enable": "1", "trt_engine_cache_path": "", "trt_timing_cache_enable": "1"},
        _RTX: {"nv_runtime_cache_path": ""},
    }
)

_registered: dict[str, str] = {}
_lock: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class Choice:
    """A provider for one session, with its options."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[Any, ...] = ()
    """Of a provider in a library: what ONNX Runtime calls its devices."""


class GpuProviders:
    """The GPU providers of this process. Looked for when the first model asks."""

    def __init__(self, libraries: Mapping[str, Path] | None = None, cache: Path | None = None) -> None:
        """``libraries``: providers by name, in files. ``cache``: where they keep what they build."""
        self._libraries = dict(libraries or {})
        self._cache = cache

    @property
    def names(self) -> Sequence[str]:
        """Those that are here, the preferred one first.

        Raises:
            UnsupportedError: a library cannot be loaded.
        """
        for name, path in self._libraries.items():
            _register(name, path)
        available = {*onnxruntime.get_available_providers(), *self._libraries}
        return [name for name in (*_PREFERRED, *self._libraries) if name in available]

    def gpus(self) -> Sequence[int]:
        """The devices of the preferred provider; empty if there is none.

        Raises:
            UnsupportedError: a library cannot be loaded.
        """
        names = self.names
        return range(len(_devices(names[0]))) if names else ()

    def choose(self, config: "ModelConfig", device: int, digest: str) -> list[Choice]:
        """What a session of ``config`` uses on ``device``; the CPU does the rest.

        Args:
            config: A model's.
            device: One of :meth:`gpus`.
            digest: Of the model's file: what was built for it lies under that name.

        Raises:
            UnsupportedError: the configuration names a provider that is not here.
            InvalidArgumentError: it gives a parameter that is not for a model.
        """
        here = self.names
        if not here:
            raise UnsupportedError(
                f"model '{config.name}' asks for a GPU, but this ONNX Runtime runs on the CPU only: use KIND_CPU"
            )
        asked = list(config.optimization.execution_accelerators.gpu_execution_accelerator)
        chosen: dict[str, dict[str, str]] = {}
        for one in asked:
            name = _OF_ACCELERATOR.get(one.name, one.name)
            if name not in here:
                raise UnsupportedError(
                    f"model '{config.name}' asks for the accelerator '{one.name}', and this ONNX Runtime has "
                    f"{', '.join(here)}; install an ONNX Runtime that has it, or name its library "
                    "with --backend-config=onnxruntime,provider-library=NAME=PATH"
                )
            chosen[name] = _parameters(config.name, name, one.parameters)
        if not chosen:
            chosen[here[0]] = {}
        elif _CUDA in here:
            chosen.setdefault(_CUDA, {})  # What the first one does not take is still for the GPU.
        return [self._choice(name, options, device, digest) for name, options in chosen.items()]

    def _choice(self, name: str, options: dict[str, str], device: int, digest: str) -> Choice:
        if self._cache is not None and name in _CACHES:
            place = self._cache / digest
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            options |= {key: value or str(place) for key, value in _CACHES[name].items()}
        if name in self._libraries:
            return Choice(name, options, (_devices(name)[device],))
        return Choice(name, {"device_id": str(device), **options})


def _parameters(model_name: str, name: str, given: Mapping[str, str]) -> dict[str, str]:
    known = _PARAMETERS.get(name, {})
    for key in given:
        if key not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise InvalidArgumentError(
                f"model '{model_name}': execution_accelerators: '{key}' is not a parameter that a model may give to "
                f"{name}; these are {listed}"
            )
    return {known[key]: value for key, value in given.items()}


def _register(name: str, path: Path) -> None:
    """Load the library of a provider; once per process, as it stays loaded.

    Raises:
        UnsupportedError: it cannot be loaded, another one has the name, or it has a provider of another name.
    """
    with _lock:
        known = _registered.get(name)
        if known == str(path):
            return
        if known is not None:
            raise UnsupportedError(f"the provider {name} was loaded from {known}, and cannot be from {path} as well")
        before = _with_devices()
        try:
            onnxruntime.register_execution_provider_library(name, str(path))
        except Exception as error:  # A plain Fail without libcudart or a driver, among others.
            raise UnsupportedError(f"the provider {name} cannot be loaded: {error}") from error
        _registered[name] = str(path)
        found = _with_devices() - before
        if not found:
            logger.warning("the provider %s finds no device that it could use on this machine", name)
        elif name not in found:
            listed = " and ".join(sorted(found))
            raise UnsupportedError(
                f"the library {path} has the provider {listed}, not {name}: give it the provider's own name, as in "
                f"--backend-config=onnxruntime,provider-library={min(found)}={path}"
            )


def _with_devices() -> set[str]:
    """The providers for which ONNX Runtime lists devices."""
    return {one.ep_name for one in onnxruntime.get_ep_devices()}


def _devices(name: str) -> list[Any]:
    """The GPUs of a provider, in ONNX Runtime's words."""
    gpu = onnxruntime.OrtHardwareDeviceType.GPU
    return [one for one in onnxruntime.get_ep_devices() if one.ep_name == name and one.device.type == gpu]


def check_used(config: "ModelConfig", session: Any, choices: Sequence[Choice]) -> None:
    """Refuse a session that does without what was chosen: ONNX Runtime goes on with the CPU, and only logs that.

    Raises:
        UnsupportedError: it does.
    """
    used = session.get_providers()
    missing = [choice.name for choice in choices if choice.name not in used]
    if missing:
        raise UnsupportedError(
            f"model '{config.name}' does not run on {', '.join(missing)}: ONNX Runtime could not make use of it and "
            f"has {', '.join(used)}; its log names the library that is missing"
        )
