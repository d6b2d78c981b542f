"""Loading TensorRT plans."""

import hashlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from repoagent.engines import cuda
from repoagent.engines.plan_description import MOST_BYTES, STATEMENT_SUFFIX, PlanDescription, check_digest
from repoagent.engines.protocol import EngineOptions, Profiles
from repoagent.errors import InvalidArgumentError, UnavailableError, UnsupportedError
from repoagent.serving.backends.registry import warn_of_unknown
from repoagent.serving.backends.signatures import complete, validate
from repoagent.serving.backends.tensorrt.runner import TensorRtRunner
from repoagent.serving.backends.tensorrt.signature import (
    Describing,
    batchable,
    check_batch_size,
    check_shape_tensors,
    most_rows,
    signature_of,
)
from repoagent.serving.backends.tensorrt.slot import GraphRule
from repoagent.serving.instances.backend import BackendModel, InstanceSpec
from repoagent.serving.instances.instance import instance_specs
from repoagent.storage.files.files import ModelFiles

if TYPE_CHECKING:
    from repoagent.config import ModelConfig
    from repoagent.engines.cuda.engine import TensorRtEngine
    from repoagent.engines.cuda.platform import CudaPlatform

logger = logging.getLogger(__name__)


class TensorRtModel(BackendModel):
    """One version of a plan, open on each device of an instance."""

    def __init__(
        self, config: "ModelConfig", platform: "CudaPlatform", open_on: Callable[[int], "TensorRtEngine"]
    ) -> None:
        """``open_on`` opens the plan on a device that no instance was on when the model was loaded."""
        self._platform = platform
        self._open_on = open_on
        self._outputs = [item.name for item in config.output]
        self._graphs = GraphRule(config) if config.optimization.cuda.graphs else None
        # Only a batcher has a next batch while one is computed; a direct caller waits for its own.
        self._depth = 2 if config.HasField("dynamic_batching") and config.max_batch_size else 1
        self._max_rows = config.max_batch_size
        self._engines: dict[int, TensorRtEngine] = {}
        self._lock = threading.Lock()
        self._closed = False

    def add(self, device: int, engine: "TensorRtEngine") -> None:
        """The plan is open on ``device``."""
        self._engines[device] = engine

    def engine(self, device: int) -> "TensorRtEngine":
        """The engine on ``device``; opened if need be, which reads the plan again. Raises ``UnavailableError`` if the
        model has been unloaded."""
        with self._lock:
            if self._closed:
                raise UnavailableError("the model has been unloaded")
            engine = self._engines.get(device)
            if engine is None:
                engine = self._engines[device] = self._open_on(device)
            return engine

    def create_instance(self, spec: InstanceSpec) -> TensorRtRunner:
        """As :meth:`BackendModel.create_instance`. Raises ``UnsupportedError`` without a GPU, ``InvalidArgumentError``
        if the plan has no profile that the group names, and ``UnavailableError`` without memory on the device."""
        if spec.kind != "GPU":
            raise UnsupportedError(f"instance '{spec.name}' has kind {spec.kind}, and a TensorRT plan runs on a GPU")
        engine = self.engine(spec.device_id)
        return TensorRtRunner(
            engine,
            self._platform.device(spec.device_id),
            Profiles(engine.profiles, spec.profiles),
            self._outputs,
            depth=self._depth,
            graphs=self._graphs,
            max_rows=self._max_rows,
        )

    def close(self) -> None:
        """Close every engine; their instances are closed."""
        with self._lock:
            self._closed = True
            engines, self._engines = list(self._engines.values()), {}
        for engine in engines:
            engine.close()


_SETTINGS: Final = ("allow-host-code", "runtime-cache-directory")


class TensorRtBackend:
    """Serves TensorRT plans on GPUs.

    ``settings`` are the backend's part of the server's ``backend_config``:

    - ``allow-host-code``: whether a plan may bring machine code for the host (``false``).
    - ``runtime-cache-directory``: where TensorRT for RTX keeps what it compiles on this machine.
    """

    name: ClassVar[str] = "tensorrt"
    platforms: ClassVar[tuple[str, ...]] = ("tensorrt_plan",)
    default_model_filename: ClassVar[str] = "model.plan"
    keeps_files_open: ClassVar[bool] = False

    def __init__(self, settings: Mapping[str, str] | None = None, *, platform: "CudaPlatform | None" = None) -> None:
        """``platform``: where plans run; found out when the first model needs it if not given."""
        settings = settings or {}
        warn_of_unknown("tensorrt", settings, _SETTINGS)
        host_code = str(settings.get("allow-host-code", "false")).lower()
        if host_code not in ("true", "false"):
            raise InvalidArgumentError(f"allow-host-code must be true or false, not '{host_code}'")
        self._allow_host_code = host_code == "true"
        self._cache_directory = str(settings.get("runtime-cache-directory", ""))
        self._platform = platform
        self._lock = threading.Lock()

    def gpus(self) -> Sequence[int]:
        """As :meth:`Backend.gpus`; ``UnsupportedError`` states why no plan can run on this machine."""
        return self._found().gpus

    def auto_complete(self, config: "ModelConfig", files: ModelFiles, version: int) -> None:
        """See :class:`~repoagent.serving.instances.backend.Backend`. Only reads the plan if something is missing.

        Where no plan can run, what the statement beside the plan has of it is taken.
        """
        if config.input and config.output:
            return
        try:
            platform = self._found()
        except UnsupportedError as error:
            _complete(config, self._described(config, files, version, error))
            return
        engine = self._open(platform, config, self._read(config, files, version), platform.gpus[0])
        try:
            _complete(config, engine)
        finally:
            engine.close()

    def load(self, config: "ModelConfig", files: ModelFiles, version: int) -> TensorRtModel:
        """See :class:`~repoagent.serving.instances.backend.Backend`. Opens the plan on every device of an instance."""
        platform = self._found()
        specs = instance_specs(config)
        for spec in specs:
            if spec.kind != "GPU":
                raise UnsupportedError(
                    f"instance '{spec.name}' has kind {spec.kind}, and a TensorRT plan runs on a GPU: use KIND_GPU"
                )

        def open_on(device: int) -> "TensorRtEngine":
            return self._open(platform, config, self._read(config, files, version), device)

        model = TensorRtModel(config, platform, open_on)
        try:
            plan = self._read(config, files, version)
            for device in dict.fromkeys(spec.device_id for spec in specs):
                model.add(device, self._open(platform, config, plan, device))
            _validate(config, model.engine(specs[0].device_id))
        except BaseException:
            model.close()
            raise
        return model

    def _found(self) -> "CudaPlatform":
        with self._lock:
            if self._platform is None:
                self._platform = cuda.find_platform()
                logger.info("TensorRT plans run on %s", self._platform.title)
            return self._platform

    def _described(
        self, config: "ModelConfig", files: ModelFiles, version: int, problem: UnsupportedError
    ) -> PlanDescription:
        path = self._path(config, version)
        self._read(config, files, version)  # and the digest is compared
        if not files.exists(f"{path}{STATEMENT_SUFFIX}"):
            raise UnsupportedError(
                f"{problem}. The plan's inputs and outputs are unknown, too: the configuration does not name them, and "
                f"{path}{STATEMENT_SUFFIX}, which the agent 'convert' writes beside a plan, is missing"
            ) from problem
        try:
            return PlanDescription.of(_statement(files, path), path.rpartition("/")[2])
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{problem}. {error}") from error

    def _path(self, config: "ModelConfig", version: int) -> str:
        return f"{version}/{config.default_model_filename or self.default_model_filename}"

    def _read(self, config: "ModelConfig", files: ModelFiles, version: int) -> bytes:
        """The plan, with the digest that it had when it was built, if that is known.

        It is not mapped: a file that is cut off while the library reads it would kill the process.
        """
        path = self._path(config, version)
        if not files.exists(path):
            raise UnavailableError(f"unable to find '{path}' for model '{config.name}'")
        plan = files.bytes(path)
        if files.exists(f"{path}{STATEMENT_SUFFIX}"):
            check_digest(plan, path.rpartition("/")[2], _statement(files, path))
        return plan

    def _open(self, platform: "CudaPlatform", config: "ModelConfig", plan: bytes, device: int) -> "TensorRtEngine":
        try:
            platform.check_plan(plan, device)
        except (InvalidArgumentError, UnsupportedError) as error:
            raise type(error)(f"unable to load the plan of model '{config.name}': {error}") from error
        cache = ""
        if self._cache_directory:
            cache = str(Path(self._cache_directory) / f"{hashlib.sha256(plan).hexdigest()}.runtime-cache")
        return platform.open(plan, EngineOptions(device, self._allow_host_code, cache))


def _statement(files: ModelFiles, path: str) -> bytes:
    """What lies beside the plan at ``path``."""
    with files.open(f"{path}{STATEMENT_SUFFIX}") as file:
        return file.read(MOST_BYTES + 1)


def _complete(config: "ModelConfig", engine: Describing) -> None:
    batching = batchable(engine)
    given = {item.name for item in _tensors(config)}
    complete(
        config,
        signature_of(engine, batching=batching),
        default_max_batch_size=max([1, *(most_rows(engine, profile) for profile in engine.profiles)])
        if batching
        else 0,
    )
    on_host = {spec.name for spec in engine.tensors if spec.on_host}
    for item in _tensors(config):
        if item.name in on_host - given:
            item.is_shape_tensor = True


def _tensors(config: "ModelConfig") -> list[Any]:
    return [*config.input, *config.output]


def _validate(config: "ModelConfig", engine: "TensorRtEngine") -> None:
    check_shape_tensors(config, engine)
    validate(config, signature_of(engine, batching=config.max_batch_size > 0))
    for group in config.instance_group:
        check_batch_size(config, engine, Profiles(engine.profiles, group.profile).indices)
