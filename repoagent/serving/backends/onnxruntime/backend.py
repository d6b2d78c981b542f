"""Loading ONNX models."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import onnxruntime

from repoagent.errors import InvalidArgumentError, UnavailableError, UnsupportedError
from repoagent.serving.backends.onnxruntime.external import add_external_data, confine, walk
from repoagent.serving.backends.onnxruntime.faults import translate
from repoagent.serving.backends.onnxruntime.options import run_options, session_options
from repoagent.serving.backends.onnxruntime.runner import OnnxRuntimeRunner
from repoagent.serving.backends.onnxruntime.signature import signature_of
from repoagent.serving.backends.registry import warn_of_unknown
from repoagent.serving.backends.signatures import Signature, complete, validate
from repoagent.serving.instances.backend import InstanceSpec
from repoagent.storage.files.files import MemoryFiles, ModelFiles

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["OnnxRuntimeBackend"]

_PROVIDERS = ("CPUExecutionProvider",)


class OnnxRuntimeBackend:
    """Serves ONNX models on the CPU with ONNX Runtime.

    ``settings`` are the backend's part of the server's ``backend_config``: ``default-max-batch-size`` (4).
    """

    name: ClassVar[str] = "onnxruntime"
    platforms: ClassVar[tuple[str, ...]] = ("onnxruntime_onnx",)
    default_model_filename: ClassVar[str] = "model.onnx"
    keeps_files_open: ClassVar[bool] = False

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        warn_of_unknown("onnxruntime", settings or {}, ("default-max-batch-size",))
        text = (settings or {}).get("default-max-batch-size", "4")
        try:
            self._default_max_batch_size = int(text)
        except ValueError:
            raise InvalidArgumentError(f"default-max-batch-size must be a whole number, not '{text}'") from None

    def gpus(self) -> Sequence[int]:
        """None: this is the CPU build."""
        return ()

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
        session = self._open(config, files, version, session_options(config, instances))
        signature = signature_of(session)
        validate(config, signature)
        return OnnxRuntimeModel(config, session, signature)

    def _open(self, config: "ModelConfig", files: ModelFiles, version: int, options: Any) -> Any:
        directory, path = self._place(config, files, version)
        neighbours = [name for name in walk(files, directory) if f"{directory}/{name}" != path]
        if neighbours and not isinstance(files, MemoryFiles):
            with files.reading(directory) as place:
                return _session(str(place / path.rpartition("/")[2]), options)
        contents = {name: files.bytes(f"{directory}/{name}") for name in neighbours}
        add_external_data(options, contents)
        confine(options)
        return _session(files.bytes(path), options)

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


def _session(model: str | bytes, options: Any) -> Any:
    try:
        return onnxruntime.InferenceSession(model, options, providers=list(_PROVIDERS))
    except Exception as error:
        raise translate(error) from error


class OnnxRuntimeModel:
    """One version: a single session, whatever the number of instances.

    A session may be run by many threads at once; sharing it keeps one copy of the weights and one thread pool.
    Triton makes one per instance unless ``share_session_between_instances`` is set, because there an instance may
    also be a GPU.
    """

    def __init__(self, config: "ModelConfig", session: Any, signature: Signature) -> None:
        self._session = session
        self._signature = signature
        self._outputs = [item.name for item in config.output]
        self._run_options = run_options(config)
        self._batching = config.max_batch_size > 0

    def create_instance(self, spec: InstanceSpec) -> OnnxRuntimeRunner:
        """See :class:`~repoagent.serving.instances.backend.BackendModel`.

        Raises:
            UnsupportedError: the instance is to run on a GPU.
        """
        if spec.kind == "GPU":
            raise UnsupportedError(
                f"instance '{spec.name}' asks for a GPU, but this ONNX Runtime runs on the CPU only: use KIND_CPU"
            )
        return OnnxRuntimeRunner(
            self._session, self._signature, self._outputs, self._run_options, batching=self._batching
        )

    def close(self) -> None:
        """See :class:`~repoagent.serving.instances.backend.BackendModel`."""
        self._session = None
