"""The GPUs of this machine with the TensorRT that is installed."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from repoagent.atomic_file import replace_file
from repoagent.engines.bindings import FLAVOUR, trt
from repoagent.engines.cuda.device import CudaDevice
from repoagent.engines.cuda.engine import TensorRtEngine, TensorRtLog
from repoagent.engines.flavours import Flavour
from repoagent.engines.plan_header import HEADER_SIZE, PlanHeader, judge
from repoagent.engines.probe import Findings
from repoagent.engines.protocol import EngineOptions
from repoagent.errors import InternalError, InvalidArgumentError

logger = logging.getLogger(__name__)

_MOST_BYTES = 1 << 30


def with_runtime_cache(
    engine: trt.ICudaEngine, path: Path
) -> tuple[Callable[[trt.ICudaEngine], trt.IExecutionContext | None], Callable[[], None]]:
    """How contexts are made that use the cache in ``path``, and what writes it back.

    A cache that cannot be read, or that was made by another version or on another GPU, is made again.
    """
    config = engine.create_runtime_config()
    cache = config.create_runtime_cache()
    kept = _read(path)
    if kept and not cache.deserialize(kept):
        logger.info("the runtime cache %s is of another version or GPU, and is made again", path)
    if not config.set_runtime_cache(cache):
        logger.warning("TensorRT for RTX takes no runtime cache: what it compiles is not kept")

    def make(engine: trt.ICudaEngine) -> trt.IExecutionContext | None:
        return engine.create_execution_context(config)

    def write() -> None:
        data = cache.serialize()
        try:
            if data is not None:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                replace_file(path, bytes(data), private=True)
        except OSError as error:
            logger.warning("the runtime cache %s cannot be written: %s", path, error)

    return make, write


def _read(path: Path) -> bytes:
    """What was kept; nothing if that cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return b""
    except OSError as error:
        logger.warning("the runtime cache %s cannot be read: %s", path, error)
        return b""
    return data if len(data) <= _MOST_BYTES else b""


class CudaPlatform:
    """Where plans run: the GPUs of this machine with one flavour of TensorRT."""

    def __init__(self, findings: Findings) -> None:
        """``findings``: of the probe, which has found this machine usable: without a driver the next lines kill."""
        assert findings.usable
        self._gpus = {gpu.index: gpu for gpu in findings.gpus}
        self.gpus = tuple(self._gpus)
        self.title = f"{FLAVOUR.title} {trt.__version__} with {', '.join(gpu.name for gpu in findings.gpus)}"
        self._devices = {index: CudaDevice(index) for index in self._gpus}
        self._log = TensorRtLog()

    def check_plan(self, plan: Any, device: int) -> None:
        """Refuse a plan, a buffer, that cannot run on ``device``, before the library sees it.

        Raises:
            InvalidArgumentError: it is damaged, or not a plan at all.
            UnsupportedError: it was built for something else; the message states for what, and what is here.
        """
        capability = self._gpu(device).capability
        judge(PlanHeader.of(plan), flavour=FLAVOUR, version=str(trt.__version__), capabilities=[capability])

    def device(self, index: int) -> CudaDevice:
        self._gpu(index)
        return self._devices[index]

    def _gpu(self, index: int) -> Any:
        gpu = self._gpus.get(index)
        if gpu is None:
            listed = ", ".join(map(str, self._gpus))
            raise InvalidArgumentError(f"there is no GPU {index} here; there are {listed}")
        return gpu

    def open(self, plan: Any, options: EngineOptions) -> TensorRtEngine:
        """Open a plan, a buffer that passed :meth:`check_plan`; ``InternalError`` has the library's first error."""
        device = self.device(options.device)
        device.use()
        self._log.clear()
        runtime = self._new_runtime(options.host_code_allowed)
        engine = runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise InternalError(f"TensorRT cannot open the plan: {self._log.reason()}{_judgement(runtime, plan)}")
        if FLAVOUR is Flavour.RTX and options.runtime_cache:
            make, write = with_runtime_cache(engine, Path(options.runtime_cache))
            return TensorRtEngine(engine, device, self._log, make, write)
        return TensorRtEngine(engine, device, self._log)

    def _new_runtime(self, host_code_allowed: bool) -> trt.Runtime:
        """One per engine, which keeps it: nothing promises that several threads may use one at once."""
        try:
            runtime = trt.Runtime(self._log)
        except Exception as error:  # "factory function returned nullptr" among them
            raise InternalError(f"TensorRT cannot make a runtime: {self._log.reason()} ({error})") from error
        if host_code_allowed:
            runtime.engine_host_code_allowed = True
        return runtime


def _judgement(runtime: Any, plan: Any) -> str:
    """What TensorRT for RTX has against a plan, by its header; TensorRT has no such call."""
    head = bytes(memoryview(plan)[:HEADER_SIZE])
    if FLAVOUR is not Flavour.RTX or len(head) < HEADER_SIZE:
        return ""
    kinds: Any = trt
    _, bits = runtime.get_engine_validity(head)
    named = [name for name, kind in kinds.EngineInvalidityDiagnostics.__members__.items() if int(bits) & int(kind)]
    return f" ({', '.join(named)})" if named else ""
