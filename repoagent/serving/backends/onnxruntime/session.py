"""Sessions of ONNX Runtime: the files of the model, the providers for GPUs, and errors."""

import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import onnxruntime

from repoagent.config import ModelConfig
from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError, UnavailableError, UnsupportedError
from repoagent.onnx_files.trial_opening import try_opening
from repoagent.serving.instances.left_behind import unless_cancelled
from repoagent.storage.files.files import MemoryFiles, ModelFiles

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
        """Those that are here, the preferred one first; raises ``UnsupportedError`` if a library cannot be loaded."""
        for name, path in self._libraries.items():
            _register(name, path)
        available = {*onnxruntime.get_available_providers(), *self._libraries}
        return [name for name in (*_PREFERRED, *self._libraries) if name in available]

    def gpus(self) -> Sequence[int]:
        """The devices of the preferred provider; none without one. Raises as :attr:`names` does."""
        names = self.names
        return range(len(_devices(names[0]))) if names else ()

    def choose(self, config: ModelConfig, device: int, digest: str) -> list[Choice]:
        """What a session of ``config`` uses on ``device``, one of :meth:`gpus`; the CPU does the rest.

        What is built for the model's file lies under its ``digest``. Raises ``UnsupportedError`` for a provider that is
        not here, and ``InvalidArgumentError`` for a parameter that is not for a model.
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
    """Load the library of a provider, once per process, as it stays loaded. Raises ``UnsupportedError`` if it cannot be
    loaded, or has a provider of another name, or another library has ``name``."""
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


def check_used(config: ModelConfig, session: Any, choices: Sequence[Choice]) -> None:
    """Raise ``UnsupportedError`` for a session that does without what was chosen: ONNX Runtime goes on with the CPU,
    and only logs that."""
    used = session.get_providers()
    missing = [choice.name for choice in choices if choice.name not in used]
    if missing:
        raise UnsupportedError(
            f"model '{config.name}' does not run on {', '.join(missing)}: ONNX Runtime could not make use of it and "
            f"has {', '.join(used)}; its log names the library that is missing"
        )


_PATTERN: Final = re.compile(r"^\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)$", re.DOTALL)


def translate(error: Exception, name: str = "") -> RepoAgentError:
    """The error to raise for what ONNX Runtime raised; texts as Triton's backend words them.

    ``name`` is the file in the model that could not be read, if it was reading one.
    """
    if isinstance(error, RepoAgentError):
        return error
    where = f"'{name}': " if name else ""
    match = _PATTERN.match(str(error))
    if match:
        return InternalError(f"onnx runtime error {match[1]}: {where}{match[2].strip()}")
    if isinstance(error, ValueError):  # A missing input, or an element that is not text.
        return InvalidArgumentError(f"onnx runtime error: {where}{error}")
    return InternalError(f"onnx runtime error: {where}{type(error).__name__}: {error}")


NO_FOLDER: Final = "/dev/null"
"""A place in which there can be no file, whatever a name after it looks like."""
_FOLDER: Final = "session.model_external_initializers_file_folder_path"


def confine(options: Any) -> None:
    """Let a session that is given its model as bytes read no file at all.

    Without this ONNX Runtime takes the names of such a model to begin in the working directory of the process.
    """
    options.add_session_config_entry(_FOLDER, NO_FOLDER)


def walk(files: ModelFiles, directory: str) -> Iterator[str]:
    """The paths of all files in ``directory`` of a model, relative to it."""
    for name in files.names(directory):
        path = f"{directory}/{name}"
        if files.names(path):
            yield from (f"{name}/{inside}" for inside in walk(files, path))
        else:
            yield name


def add_external_data(options: Any, contents: Mapping[str, bytes]) -> None:
    """Let a session find the files that its model names in memory; keep ``contents`` until it is made.

    ONNX Runtime copies what it needs while it makes the session, and looks at no file that the model does not name.
    It takes any number of bytes, but refuses a single tensor of more than 2 GiB.
    """
    if contents:
        lengths = [len(content) for content in contents.values()]
        options.add_external_initializers_from_files_in_memory(list(contents), list(contents.values()), lengths)


MODEL_FILENAME: Final = "model.onnx"
_LOOPS: Final = (b"Loop", b"Scan", b"SequenceMap")
_SIZES: Final = (
    b"AffineGrid", b"CenterCropPad", b"ConstantOfShape", b"DFT", b"Expand", b"MaxUnpool", b"MelWeightMatrix",
    b"OneHot", b"Pad", b"Range", b"Resize", b"Tile", b"Upsample", b"Window",
)  # fmt: skip
"""Operators whose outputs are as large as the values of an input demand."""
_CPU: Final = "CPUExecutionProvider"


class OpenSession(NamedTuple):
    """A session, and what was seen of the bytes that it was made of: a second read could find others."""

    session: Any
    loops: bool
    """Whether the graph may have an operator that repeats others as often, or makes as much, as its inputs demand. A
    model whose names contain that of such an operator is taken for one."""


def open_session(
    config: ModelConfig, files: ModelFiles, version: int, options: Any, choices: Sequence[Choice] = ()
) -> OpenSession:
    """A session of ONNX Runtime for ``version``; without ``choices`` on the CPU. Raises ``UnavailableError`` if the
    model's file is missing, and others if ONNX Runtime refuses it."""
    directory, path = model_file(config, files, version)
    neighbours = [name for name in walk(files, directory) if f"{directory}/{name}" != path]
    if neighbours and not isinstance(files, MemoryFiles):
        with files.reading(directory) as place:
            content = files.bytes(path)
            # Of the file itself, what was tried could be another content than what is opened.
            options.add_session_config_entry(_FOLDER, str(place))
            size = len(content) + sum((place / name).stat().st_size for name in neighbours)
            try_opening(content, options, path, size=size)
            return OpenSession(_made(path, content, options, choices), _may_loop(content))
    contents = {name: files.bytes(f"{directory}/{name}") for name in neighbours}
    add_external_data(options, contents)
    confine(options)
    content = files.bytes(path)
    try_opening(content, options, path, files=contents)
    return OpenSession(_made(path, content, options, choices), _may_loop(content))


def model_file(config: ModelConfig, files: ModelFiles, version: int) -> tuple[str, str]:
    """The directory relative to which the model names files with weights ("external data"), and the model's file.

    The model is read as bytes, so that a decrypted one need not touch a disk. If it has files beside it, their place
    is named, or, if all are in memory, they are handed over with it.

    Raises:
        UnavailableError: the file is missing.
    """
    directory = str(version)
    path = f"{directory}/{config.default_model_filename or MODEL_FILENAME}"
    if not files.exists(path):
        raise UnavailableError(f"unable to find '{path}' for model '{config.name}'")
    if inside := files.names(path):  # A directory that holds the model and its weights.
        directory, path = path, f"{path}/{MODEL_FILENAME}"
        if MODEL_FILENAME not in inside:
            raise UnavailableError(f"unable to find '{path}' for model '{config.name}'")
    return directory, path


def _may_loop(model: bytes) -> bool:
    return any(operator in model for operator in (*_LOOPS, *_SIZES))


def _made(name: str, model: bytes, options: Any, choices: Sequence[Choice]) -> Any:
    try:
        if any(choice.devices for choice in choices):
            for choice in choices:
                if choice.devices:
                    options.add_provider_for_devices(list(choice.devices), dict(choice.options))
                else:
                    options.add_provider(choice.name, dict(choice.options))
            return _open(lambda: onnxruntime.InferenceSession(model, options), options)
        providers: list[Any] = [(choice.name, dict(choice.options)) for choice in choices]
        return _open(lambda: onnxruntime.InferenceSession(model, options, providers=[*providers, _CPU]), options)
    except RepoAgentError:
        raise
    except Exception as error:
        raise translate(error, name) from error


def _open(make: Callable[[], Any], options: Any) -> Any:
    # ONNX Runtime computes what is constant, which can take years, and looks at the flag only before and after that.
    return unless_cancelled(make, lambda: options.set_load_cancellation_flag(True))
