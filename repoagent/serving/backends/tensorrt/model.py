"""One loaded plan: an engine per device, which its instances share."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from repoagent.engines.profiles import Profiles
from repoagent.engines.protocol import Engine, Platform
from repoagent.errors import UnavailableError, UnsupportedError
from repoagent.serving.backends.tensorrt.graphs import GraphRule
from repoagent.serving.backends.tensorrt.runner import TensorRtRunner
from repoagent.serving.instances.backend import InstanceSpec

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["TensorRtModel"]


class TensorRtModel:
    """See :class:`~repoagent.serving.instances.backend.BackendModel`."""

    def __init__(self, config: "ModelConfig", platform: Platform, open_on: Callable[[int], Engine]) -> None:
        """``open_on`` opens the plan on a device that no instance was on when the model was loaded."""
        self._platform = platform
        self._open_on = open_on
        self._outputs = [item.name for item in config.output]
        self._graphs = GraphRule.of(config)
        # Only a batcher has a next batch while one is computed; a direct caller waits for its own.
        self._depth = 2 if config.HasField("dynamic_batching") and config.max_batch_size else 1
        self._max_rows = config.max_batch_size
        self._engines: dict[int, Engine] = {}
        self._lock = threading.Lock()
        self._closed = False

    def add(self, device: int, engine: Engine) -> None:
        """The plan is open on ``device``."""
        self._engines[device] = engine

    def engine(self, device: int) -> Engine:
        """The engine on ``device``; opened if need be, which reads the plan again.

        Raises:
            UnavailableError: the model has been unloaded.
        """
        with self._lock:
            if self._closed:
                raise UnavailableError("the model has been unloaded")
            engine = self._engines.get(device)
            if engine is None:
                engine = self._engines[device] = self._open_on(device)
            return engine

    def create_instance(self, spec: InstanceSpec) -> TensorRtRunner:
        """See :class:`~repoagent.serving.instances.backend.BackendModel`.

        Raises:
            UnsupportedError: the instance is not to run on a GPU.
            InvalidArgumentError: the plan has no profile that the instance's group names.
            UnavailableError: the device has not enough memory.
        """
        if spec.kind != "GPU":
            raise UnsupportedError(f"instance '{spec.name}' has kind {spec.kind}, and a TensorRT plan runs on a GPU")
        engine = self.engine(spec.device_id)
        return TensorRtRunner(
            engine,
            self._platform.device(spec.device_id),
            Profiles(engine, spec.profiles),
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
