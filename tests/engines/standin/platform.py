"""The stand-in as a place where plans run."""

import threading
from collections.abc import Sequence
from typing import Any

from repoagent.engines.protocol import EngineOptions
from tests.engines.standin.device import StandInDevice
from tests.engines.standin.engine import StandInEngine
from tests.engines.standin.plan import StandInPlan


class StandInPlatform:
    """In the place of ``CudaPlatform``. It has as many devices as are asked for."""

    title = "the stand-in over ONNX Runtime"

    def __init__(self, gpus: Sequence[int] = (0,), *, memory_bytes: int = 1 << 40) -> None:
        self.gpus = tuple(gpus)
        self._memory_bytes = memory_bytes
        self._devices: dict[int, StandInDevice] = {}
        self._lock = threading.Lock()

    def check_plan(self, plan: Any, device: int) -> None:
        StandInPlan.of(plan)

    def device(self, index: int) -> StandInDevice:
        with self._lock:
            return self._devices.setdefault(index, StandInDevice(index, self._memory_bytes))

    def open(self, plan: Any, options: EngineOptions) -> StandInEngine:
        return StandInEngine(StandInPlan.of(plan), self.device(options.device), options)
