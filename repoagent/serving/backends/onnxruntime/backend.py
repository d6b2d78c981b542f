"""Loading ONNX models: the signature of a session in the terms of a configuration, and what a version holds."""

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import onnxruntime

from repoagent.config import ModelConfig
from repoagent.errors import InvalidArgumentError, UnsupportedError
from repoagent.serving.backends.onnxruntime.runner import OnnxRuntimeRunner, TurnTakingRunner
from repoagent.serving.backends.onnxruntime.session import (
    MODEL_FILENAME,
    Choice,
    GpuProviders,
    OpenSession,
    check_used,
    model_file,
    open_session,
)
from repoagent.serving.backends.registry import warn_of_unknown
from repoagent.serving.backends.signatures import Signature, TensorInfo, complete, validate
from repoagent.serving.instances.backend import BackendModel, InstanceSpec
from repoagent.serving.instances.instance import instance_specs
from repoagent.serving.requests.tensor import DataType
from repoagent.storage.files.files import ModelFiles

logger = logging.getLogger(__name__)


_LEVELS: Final = {
    -1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    0: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
_TRUE: Final = frozenset({"1", "true", "on", "yes"})
_FALSE: Final = frozenset({"0", "false", "off", "no"})
_THREADS: Final = "intra_op_thread_count"
_SPINNING: Final = "session.intra_op.allow_spinning"
_SHRINKAGE: Final = "memory.enable_memory_arena_shrinkage"


class _Parameters:
    """The ``parameters`` of a configuration, as numbers and truth values."""

    def __init__(self, config: ModelConfig) -> None:
        self._values = {key: value.string_value for key, value in config.parameters.items()}

    def text(self, key: str) -> str | None:
        return self._values.get(key)

    def number(self, key: str) -> int:
        text = self._values.get(key) or "0"
        try:
            return int(text)
        except ValueError:
            raise InvalidArgumentError(f"parameter '{key}' must be a whole number, not '{text}'") from None

    def truth(self, key: str) -> bool | None:
        text = self._values.get(key)
        return None if text is None else _truth(f"parameter '{key}'", text)


def _truth(name: str, text: str) -> bool:
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise InvalidArgumentError(f"{name} must be true or false, not '{text}'")


def session_options(config: ModelConfig, instances: int) -> Any:
    """The ``onnxruntime.SessionOptions`` for one version of a model that ``instances`` instances share.

    Without ``intra_op_thread_count`` the instances divide the cores that this process may use, at least one thread
    each. Threads do not spin while they wait (as is ONNX Runtime's default), because the server's own threads need the
    cores in between; ``session.intra_op.allow_spinning`` = 1 turns that on.

    Raises:
        InvalidArgumentError: a parameter has no sensible value.
    """
    parameters = _Parameters(config)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = _LEVELS.get(config.optimization.graph.level, _LEVELS[0])
    options.execution_mode = _execution_mode(parameters)
    options.intra_op_num_threads = parameters.number(_THREADS) or max(1, len(os.sched_getaffinity(0)) // instances)
    if inter_op := parameters.number("inter_op_thread_count"):
        options.inter_op_num_threads = inter_op
    if (arena := parameters.truth("enable_mem_arena")) is not None:
        options.enable_cpu_mem_arena = arena
    # A memory pattern is planned per shape under a lock; with several threads in one session it only gets in the way.
    pattern = parameters.truth("enable_mem_pattern")
    options.enable_mem_pattern = instances == 1 if pattern is None else pattern
    options.add_session_config_entry(_SPINNING, "1" if parameters.truth(_SPINNING) else "0")
    return options


def _execution_mode(parameters: _Parameters) -> Any:
    mode = parameters.number("execution_mode")
    if mode not in (0, 1):
        raise InvalidArgumentError(
            f"Invalid configuration value provided. Expected values for execution_mode are 0 or 1 but got {mode}."
        )
    return onnxruntime.ExecutionMode.ORT_PARALLEL if mode else onnxruntime.ExecutionMode.ORT_SEQUENTIAL


def run_options(config: ModelConfig) -> Any:
    """The ``onnxruntime.RunOptions`` for the runs of one instance."""
    options = onnxruntime.RunOptions()
    if (shrinkage := _Parameters(config).text(_SHRINKAGE)) is not None:
        options.add_run_config_entry(_SHRINKAGE, shrinkage)
    return options


def device_of(spec: InstanceSpec) -> int | None:
    """The device of an instance; None for the CPU."""
    return spec.device_id if spec.kind == "GPU" else None


class OnnxRuntimeModel(BackendModel):
    """One version: a single session per device, whatever the number of instances.

    A session may be run by many threads at once; sharing it keeps one copy of the weights and one thread pool.
    Triton makes one per instance unless ``share_session_between_instances`` is set, because there an instance may
    also be a GPU.
    """

    def __init__(
        self,
        config: ModelConfig,
        sessions: Mapping[int | None, OpenSession],
        signature: Signature,
        open_on: Callable[[int | None], OpenSession],
        *,
        turns: bool = False,
    ) -> None:
        """``sessions``: by device, None for the CPU. ``open_on`` opens one where an instance is added later.

        ``turns``: runs on the CPU take turns with those of other models.
        """
        self._sessions = dict(sessions)
        self._open_on = open_on
        self._lock = threading.Lock()
        self._signature = signature
        self._outputs = [item.name for item in config.output]
        self._new_options = partial(run_options, config)
        self._turns = turns
        self._batching = config.max_batch_size > 0

    def create_instance(self, spec: InstanceSpec) -> OnnxRuntimeRunner:
        """As :meth:`BackendModel.create_instance`; ``UnsupportedError`` if ONNX Runtime cannot use the GPU."""
        place = device_of(spec)
        with self._lock:
            if (opened := self._sessions.get(place)) is None:
                opened = self._sessions[place] = self._open_on(place)
        runner = TurnTakingRunner if self._turns and place is None else OnnxRuntimeRunner
        return runner(
            opened.session,
            self._signature,
            self._outputs,
            self._new_options,
            batching=self._batching,
            loops=opened.loops,
        )

    def close(self) -> None:
        self._sessions.clear()


_TYPES: Final = {
    "tensor(bool)": DataType.BOOL,
    "tensor(uint8)": DataType.UINT8,
    "tensor(uint16)": DataType.UINT16,
    "tensor(uint32)": DataType.UINT32,
    "tensor(uint64)": DataType.UINT64,
    "tensor(int8)": DataType.INT8,
    "tensor(int16)": DataType.INT16,
    "tensor(int32)": DataType.INT32,
    "tensor(int64)": DataType.INT64,
    "tensor(float16)": DataType.FP16,
    "tensor(float)": DataType.FP32,
    "tensor(double)": DataType.FP64,
    "tensor(string)": DataType.BYTES,
    "tensor(bfloat16)": DataType.BF16,
}
_ZIPMAP: Final = ("seq(map(int64,tensor(float)))", "seq(map(string,tensor(float)))")


def signature_of(session: Any) -> Signature:
    """Read an ``onnxruntime.InferenceSession``. Outputs that no protocol can carry are left out; ``UnsupportedError``
    if all outputs, or an input, are such."""
    nodes = session.get_outputs()
    return Signature(
        tuple(map(_info, session.get_inputs())),
        tuple(_info(node) for node in nodes if node.type in _TYPES) or tuple(map(_info, nodes)),
        tuple(map(_info, session.get_overridable_initializers())),
    )


def left_out(session: Any) -> list[str]:
    """Why each output that :func:`signature_of` leaves out cannot be served."""
    return [str(_unservable(node)) for node in session.get_outputs() if node.type not in _TYPES]


def _info(node: Any) -> TensorInfo:
    data_type = _TYPES.get(node.type)
    if data_type is None:
        raise _unservable(node)
    return TensorInfo(
        node.name, data_type, tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape)
    )


def _unservable(node: Any) -> UnsupportedError:
    # What skl2onnx gives the probabilities of a classifier, unless it is asked for a matrix.
    way = "; write the model with skl2onnx.to_onnx(..., options={'zipmap': False})" if node.type in _ZIPMAP else ""
    return UnsupportedError(
        f"tensor '{node.name}' of the model has type '{node.type}', which cannot be served{way}; supported are "
        f"{', '.join(_TYPES)}"
    )


_TURNS: Final = "turns"
_SETTINGS: Final = ("default-max-batch-size", "engine-cache-directory", "provider-library", _TURNS)


class OnnxRuntimeBackend:
    """Serves ONNX models with ONNX Runtime: on the CPU, or with its GPU providers where it has any.

    ``settings`` are the backend's part of the server's ``backend_config``:

    - ``default-max-batch-size`` (4)
    - ``provider-library``: ``NAME=PATH``, a provider in a library; several are separated by ``:``.
    - ``engine-cache-directory``: where GPU providers keep what they build.
    - ``turns`` (false): models with all cores take turns with each other, and with language models.
    """

    name: ClassVar[str] = "onnxruntime"
    platforms: ClassVar[tuple[str, ...]] = ("onnxruntime_onnx",)
    default_model_filename: ClassVar[str] = MODEL_FILENAME
    keeps_files_open: ClassVar[bool] = False

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        warn_of_unknown("onnxruntime", settings or {}, _SETTINGS)
        text = (settings or {}).get("default-max-batch-size", "4")
        try:
            self._default_max_batch_size = int(text)
        except ValueError:
            raise InvalidArgumentError(f"default-max-batch-size must be a whole number, not '{text}'") from None
        cache = (settings or {}).get("engine-cache-directory", "")
        self._turns = _truth(_TURNS, (settings or {}).get(_TURNS, "false"))
        libraries = _libraries((settings or {}).get("provider-library", ""))
        self._providers = GpuProviders(libraries, Path(cache) if cache else None)

    def gpus(self) -> Sequence[int]:
        """The devices of ONNX Runtime's GPU providers; ``UnsupportedError`` if a library cannot be loaded."""
        return self._providers.gpus()

    def auto_complete(self, config: ModelConfig, files: ModelFiles, version: int) -> None:
        """See :class:`~repoagent.serving.instances.backend.Backend`. Only looks at the file if something is missing."""
        if config.input and config.output:
            return
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        signature = signature_of(open_session(config, files, version, options).session)
        complete(config, signature, default_max_batch_size=self._default_max_batch_size)

    def load(self, config: ModelConfig, files: ModelFiles, version: int) -> OnnxRuntimeModel:
        instances = sum(max(1, group.count) for group in config.instance_group) or 1

        def open_on(device: int | None) -> OpenSession:
            """A session on the CPU for None."""
            choices = [] if device is None else self._choose(config, files, version, device)
            opened = open_session(config, files, version, session_options(config, instances), choices)
            check_used(config, opened.session, choices)
            return opened

        places = dict.fromkeys(device_of(spec) for spec in instance_specs(config)) or {None: None}
        sessions = {place: open_on(place) for place in places}
        session = next(iter(sessions.values())).session
        signature = signature_of(session)
        for reason in left_out(session):
            logger.warning("model '%s' is served without one of its outputs: %s", config.name, reason)
        validate(config, signature)
        # Instances that divide the cores, and a model with threads of its own choice, leave cores to others.
        alone = self._turns and instances == 1 and not _Parameters(config).number(_THREADS)
        return OnnxRuntimeModel(config, sessions, signature, open_on, turns=alone)

    def _choose(self, config: ModelConfig, files: ModelFiles, version: int, device: int) -> list[Choice]:
        _, path = model_file(config, files, version)
        return self._providers.choose(config, device, hashlib.sha256(files.bytes(path)).hexdigest())


def _libraries(text: str) -> dict[str, Path]:
    """Read ``NAME=PATH:NAME=PATH``; raises ``InvalidArgumentError`` for another form."""
    libraries = {}
    for one in filter(None, text.split(":")):
        name, _, path = one.partition("=")
        if not name or not Path(path).is_absolute():
            raise InvalidArgumentError(f"provider-library must be NAME=PATH with an absolute path, not '{one}'")
        libraries[name] = Path(path)
    return libraries
