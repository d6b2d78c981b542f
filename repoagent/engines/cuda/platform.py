"""The GPUs of this machine with the TensorRT that is installed."""

from pathlib import Path
from typing import Any

from repoagent.engines.bindings import FLAVOUR, trt
from repoagent.engines.cuda.device import CudaDevice
from repoagent.engines.cuda.engine import TensorRtEngine
from repoagent.engines.cuda.logger import TensorRtLog
from repoagent.engines.flavours import Flavour
from repoagent.engines.plan_header import HEADER_SIZE, PlanHeader, judge
from repoagent.engines.probing import Findings
from repoagent.engines.protocol import EngineOptions
from repoagent.errors import InternalError, InvalidArgumentError

__all__ = ["CudaPlatform"]


class CudaPlatform:
    """See :class:`~repoagent.engines.protocol.Platform`."""

    def __init__(self, findings: Findings) -> None:
        """``findings``: of the probe, which has found this machine usable: without a driver the next lines kill."""
        assert findings.usable
        self._gpus = {gpu.index: gpu for gpu in findings.gpus}
        self.gpus = tuple(self._gpus)
        self.title = f"{FLAVOUR.title} {trt.__version__} with {', '.join(gpu.name for gpu in findings.gpus)}"
        self._devices = {index: CudaDevice(index) for index in self._gpus}
        self._log = TensorRtLog()

    def check_plan(self, plan: Any, device: int) -> None:
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
        device = self.device(options.device)
        device.use()
        self._log.clear()
        runtime = self._new_runtime(options.host_code_allowed)
        engine = runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise InternalError(f"TensorRT cannot open the plan: {self._log.reason()}{_judgement(runtime, plan)}")
        if FLAVOUR is Flavour.RTX and options.runtime_cache:
            from repoagent.engines.cuda.runtime_cache import with_runtime_cache

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
