"""Loading ONNX models."""

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import onnxruntime

from repoagent.errors import InvalidArgumentError, UnavailableError
from repoagent.serving.backends.onnxruntime.error_translation import translate
from repoagent.serving.backends.onnxruntime.external_data import add_external_data, confine, walk
from repoagent.serving.backends.onnxruntime.options import run_options, session_options
from repoagent.serving.backends.onnxruntime.providers import Choice, GpuProviders, check_used
from repoagent.serving.backends.onnxruntime.runner import OnnxRuntimeRunner
from repoagent.serving.backends.onnxruntime.signature import signature_of
from repoagent.serving.backends.registry import warn_of_unknown
from repoagent.serving.backends.signatures import Signature, complete, validate
from repoagent.serving.instances.backend import InstanceSpec
from repoagent.serving.instances.base import instance_specs
from repoagent.storage.files.files import MemoryFiles, ModelFiles

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["OnnxRuntimeBackend"]

_CPU: Final = "CPUExecutionProvider"
_SETTINGS: Final = ("default-max-batch-size", "engine-cache-directory", "provider-library")


class OnnxRuntimeBackend:
    """Serves ONNX models with ONNX Runtime: on the CPU, or with its GPU providers where it has any.

    ``settings`` are the backend's part of the server's ``backend_config``:

    - ``default-max-batch-size`` (4)
    - ``provider-library``: ``NAME=PATH``, a provider in a library; several are separated by ``:``.
    - ``engine-cache-directory``: where GPU providers keep what they build.
    """

    name: ClassVar[str] = "onnxruntime"
    platforms: ClassVar[tuple[str, ...]] = ("onnxruntime_onnx",)
    default_model_filename: ClassVar[str] = "model.onnx"
    keeps_files_open: ClassVar[bool] = False

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        warn_of_unknown("onnxruntime", settings or {}, _SETTINGS)
        text = (settings or {}).get("default-max-batch-size", "4")
        try:
            self._default_max_batch_size = int(text)
        except ValueError:
            raise InvalidArgumentError(f"default-max-batch-size must be a whole number, not '{text}'") from None
        cache = (settings or {}).get("engine-cache-directory", "")
        libraries = _libraries((settings or {}).get("provider-library", ""))
        self._providers = GpuProviders(libraries, Path(cache) if cache else None)

    def gpus(self) -> Sequence[int]:
        """See :class:`~repoagent.serving.instances.backend.Backend`: those of ONNX Runtime's GPU providers.

        Raises:
            UnsupportedError: a provider's library cannot be loaded.
        """
        return self._providers.gpus()

    def auto_complete(self, config: "ModelConfig", files: ModelFiles, version: int) -> None:
        """See :class:`~repoagent.serving.instances.backend.Backend`. Only looks at the file if something is missing."""
        if config.input and config.output:
            return
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        signature = signature_of(self._open(config, files, version, options))
        complete(config, signature, default_max_batch_size=self._default_max_batch_size)

    def load(self, config: "ModelConfig", files: ModelFiles, version: int) -> "OnnxRuntimeModel":
        """See :class:`~repoagent.serving.instances.backend.Backend`."""
        instances = sum(max(1, group.count) for group in config.instance_group) or 1

        def open_on(device: int | None) -> Any:
            """A session on the CPU for None."""
            choices = [] if device is None else self._choose(config, files, version, device)
            session = self._open(config, files, version, session_options(config, instances), choices)
            check_used(config, session, choices)
            return session

        places = dict.fromkeys(_place(spec) for spec in instance_specs(config)) or {None: None}
        sessions = {place: open_on(place) for place in places}
        signature = signature_of(next(iter(sessions.values())))
        validate(config, signature)
        return OnnxRuntimeModel(config, sessions, signature, open_on)

    def _choose(self, config: "ModelConfig", files: ModelFiles, version: int, device: int) -> list[Choice]:
        _, path = self._place(config, files, version)
        return self._providers.choose(config, device, hashlib.sha256(files.bytes(path)).hexdigest())

    def _open(
        self, config: "ModelConfig", files: ModelFiles, version: int, options: Any, choices: Sequence[Choice] = ()
    ) -> Any:
        directory, path = self._place(config, files, version)
        neighbours = [name for name in walk(files, directory) if f"{directory}/{name}" != path]
        if neighbours and not isinstance(files, MemoryFiles):
            with files.reading(directory) as place:
                return _session(path, str(place / path.rpartition("/")[2]), options, choices)
        contents = {name: files.bytes(f"{directory}/{name}") for name in neighbours}
        add_external_data(options, contents)
        confine(options)
        return _session(path, files.bytes(path), options, choices)

    def _place(self, config: "ModelConfig", files: ModelFiles, version: int) -> tuple[str, str]:
        """The model's file, and the directory relative to which it names files with weights ("external data").

        The model is read as bytes, so that a decrypted one need not touch a disk. If it has files beside it, it is
        opened by its path, or, if all are in memory, they are handed over with it.
        """
        directory = str(version)
        path = f"{directory}/{config.default_model_filename or self.default_model_filename}"
        if not files.exists(path):
            raise UnavailableError(f"unable to find '{path}' for model '{config.name}'")
        if inside := files.names(path):  # A directory that holds the model and its weights.
            directory, path = path, f"{path}/{self.default_model_filename}"
            if self.default_model_filename not in inside:
                raise UnavailableError(f"unable to find '{path}' for model '{config.name}'")
        return directory, path


def _session(name: str, model: str | bytes, options: Any, choices: Sequence[Choice]) -> Any:
    try:
        if any(choice.devices for choice in choices):
            for choice in choices:
                if choice.devices:
                    options.add_provider_for_devices(list(choice.devices), dict(choice.options))
                else:
                    options.add_provider(choice.name, dict(choice.options))
            return onnxruntime.InferenceSession(model, options)
        providers: list[Any] = [(choice.name, dict(choice.options)) for choice in choices]
        return onnxruntime.InferenceSession(model, options, providers=[*providers, _CPU])
    except Exception as error:
        raise translate(error, name) from error


def _place(spec: InstanceSpec) -> int | None:
    """The device of an instance; None for the CPU."""
    return spec.device_id if spec.kind == "GPU" else None


def _libraries(text: str) -> dict[str, Path]:
    """Read ``NAME=PATH:NAME=PATH``.

    Raises:
        InvalidArgumentError: it is something else.
    """
    libraries = {}
    for one in filter(None, text.split(":")):
        name, _, path = one.partition("=")
        if not name or not Path(path).is_absolute():
            raise InvalidArgumentError(f"provider-library must be NAME=PATH with an absolute path, not '{one}'")
        libraries[name] = Path(path)
    return libraries


class OnnxRuntimeModel:
    """One version: a single session per device, whatever the number of instances.

    A session may be run by many threads at once; sharing it keeps one copy of the weights and one thread pool.
    Triton makes one per instance unless ``share_session_between_instances`` is set, because there an instance may
    also be a GPU.
    """

    def __init__(
        self,
        config: "ModelConfig",
        sessions: Mapping[int | None, Any],
        signature: Signature,
        open_on: Callable[[int | None], Any],
    ) -> None:
        """``sessions``: by device, None for the CPU. ``open_on`` opens one where an instance is added later."""
        self._sessions = dict(sessions)
        self._open_on = open_on
        self._lock = threading.Lock()
        self._signature = signature
        self._outputs = [item.name for item in config.output]
        self._run_options = run_options(config)
        self._batching = config.max_batch_size > 0

    def create_instance(self, spec: InstanceSpec) -> OnnxRuntimeRunner:
        """See :class:`~repoagent.serving.instances.backend.BackendModel`.

        Raises:
            UnsupportedError: the instance is to run on a GPU, and ONNX Runtime cannot use it.
        """
        place = _place(spec)
        with self._lock:
            session = self._sessions.get(place)
            if session is None:
                session = self._sessions[place] = self._open_on(place)
        return OnnxRuntimeRunner(session, self._signature, self._outputs, self._run_options, batching=self._batching)

    def close(self) -> None:
        """See :class:`~repoagent.serving.instances.backend.BackendModel`."""
        self._sessions.clear()
