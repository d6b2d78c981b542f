"""Engines and contexts of TensorRT."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from repoagent.atomic_file import replace_file
from repoagent.engines.bindings import FLAVOUR, trt
from repoagent.engines.cuda.device import CudaDevice
from repoagent.engines.flavours import Flavour
from repoagent.engines.plan_header import HEADER_SIZE, PlanHeader, judge
from repoagent.engines.probe import Findings
from repoagent.engines.protocol import (
    ElementType,
    EngineOptions,
    GrowingOutput,
    Profile,
    Shape,
    ShapeRange,
    Stream,
    TensorSpec,
)
from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError, UnsupportedError
from repoagent.public_text import printable

logger = logging.getLogger(__name__)

_KEPT: Final = 16
"""Errors: later ones are consequences, and a thread of the library never clears its own."""
_MOST_CHARACTERS: Final = 2000


class TensorRtLog(trt.ILogger):  # type: ignore[misc, unused-ignore]
    """Collects the errors of each thread that calls, and those of threads of the library's own."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self._calling = threading.local()
        self._others: deque[tuple[float, str]] = deque(maxlen=_KEPT)

    def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
        """Called by TensorRT. What is raised here is lost."""
        text = printable(msg[:_MOST_CHARACTERS])  # A plan may have put its names into it.
        if severity in (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR):
            self._note(text)
            logger.error("TensorRT: %s", text)
        elif severity == trt.ILogger.Severity.WARNING:
            logger.warning("TensorRT: %s", text)
        else:
            logger.debug("TensorRT: %s", text)

    def _note(self, text: str) -> None:
        errors: list[str] | None = getattr(self._calling, "errors", None)
        if errors is None:
            self._others.append((time.monotonic(), text))
        elif len(errors) < _KEPT:
            errors.append(text)

    def clear(self) -> None:
        """Forget the errors of the calling thread; a call of TensorRT follows."""
        self._calling.errors = []
        self._calling.since = time.monotonic()

    def reason(self) -> str:
        """The first error since :meth:`clear`, of the calling thread if it has one: what follows are consequences."""
        errors: list[str] = getattr(self._calling, "errors", [])
        since: float = getattr(self._calling, "since", 0.0)
        found = errors or [text for moment, text in tuple(self._others) if moment >= since]
        return found[0] if found else "TensorRT gave no reason"


ContextMaker = Callable[[trt.ICudaEngine], trt.IExecutionContext | None]


class TensorRtEngine:
    """See :class:`~repoagent.engines.protocol.Engine`."""

    def __init__(
        self,
        engine: trt.ICudaEngine,
        device: CudaDevice,
        log: TensorRtLog,
        make_context: ContextMaker | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        """``make_context``: how a context is made, where it takes more than asking the engine for it."""
        if engine.streamable_weights_size:
            raise UnsupportedError("the plan was built with weight streaming, which is not supported yet")
        self._engine: trt.ICudaEngine | None = engine
        self._device = device
        self._log = log
        self._make_context = make_context or _new_context
        self._on_close = on_close
        self._lock = threading.Lock()
        self.name = engine.name
        self.tensors = tuple(_spec(engine, engine.get_tensor_name(at)) for at in range(engine.num_io_tensors))
        self.profiles = tuple(_profile(engine, self.tensors, at) for at in range(engine.num_optimization_profiles))
        self.memory_needed = engine.device_memory_size_v2

    def new_context(self) -> "TensorRtContext":
        with self._lock:  # Instances are made on several threads, and nothing promises that the library allows that.
            if self._engine is None:
                raise InternalError("the engine is closed")
            self._device.use()
            self._log.clear()
            context = self._make_context(self._engine)
        if context is None:
            raise InternalError(f"TensorRT cannot make an execution context: {self._log.reason()}")
        return TensorRtContext(context, self._device, self._log)

    def close(self) -> None:
        with self._lock:
            if self._engine is None:
                return
            if self._on_close is not None:
                self._on_close()
            with suppress(RepoAgentError):
                self._device.use()  # The library frees its memory where it goes.
            # What was made of the engine goes before it.
            self._make_context, self._on_close, self._engine = _new_context, None, None


def _new_context(engine: trt.ICudaEngine) -> trt.IExecutionContext | None:
    return engine.create_execution_context()


def _spec(engine: trt.ICudaEngine, name: str) -> TensorSpec:
    for profile in range(engine.num_optimization_profiles):
        if engine.get_tensor_format(name, profile) != trt.TensorFormat.LINEAR:
            raise UnsupportedError(
                f"tensor '{name}' of the plan has the format {engine.get_tensor_format_desc(name, profile)} in profile "
                f"{profile}; build the plan with linear formats at its inputs and outputs"
            )
    kind = engine.get_tensor_dtype(name).name
    if kind not in ElementType.__members__:
        raise UnsupportedError(f"tensor '{name}' of the plan has elements of type {kind}, which is not known here")
    is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
    return TensorSpec(
        name,
        is_input,
        ElementType[kind],
        tuple(engine.get_tensor_shape(name)),
        engine.get_tensor_location(name) == trt.TensorLocation.HOST,
        None if is_input else engine.get_aliased_input_tensor(name) or None,
    )


def _profile(engine: trt.ICudaEngine, specs: tuple[TensorSpec, ...], index: int) -> Profile:
    shapes, values = {}, {}
    for spec in specs:
        if spec.is_input and -1 in spec.shape:
            shapes[spec.name] = ShapeRange(*(tuple(dims) for dims in engine.get_tensor_profile_shape(spec.name, index)))
        if spec.is_input and spec.on_host:
            # The bindings name these two the wrong way round: only their places are right.
            ranges = engine.get_tensor_profile_values(index, spec.name)
            if ranges:
                values[spec.name] = ShapeRange(*(tuple(one) for one in ranges))
    return Profile(shapes, values)


class TensorRtContext:
    """See :class:`~repoagent.engines.protocol.Context`."""

    def __init__(self, context: trt.IExecutionContext, device: CudaDevice, log: TensorRtLog) -> None:
        self._opened: trt.IExecutionContext | None = context
        self._device = device
        self._log = log
        self._allocators: dict[str, _Allocator] = {}

    @property
    def _context(self) -> trt.IExecutionContext:
        if self._opened is None:
            raise InternalError("the execution context is closed")
        return self._opened

    def use_profile(self, index: int, stream: Stream) -> None:
        self._device.use()
        self._log.clear()
        if not self._context.set_optimization_profile_async(index, stream.handle):
            raise InternalError(f"TensorRT cannot use profile {index}: {self._log.reason()}")

    def set_shape(self, name: str, shape: Shape) -> None:
        self._log.clear()
        if not self._context.set_input_shape(name, shape):
            raise InvalidArgumentError(f"input '{name}' cannot have shape {list(shape)}: {self._log.reason()}")

    def bind(self, name: str, address: int) -> None:
        self._log.clear()
        if not self._context.set_tensor_address(name, address):
            raise InternalError(f"TensorRT cannot find '{name}' at {address:#x}: {self._log.reason()}")

    def grow(self, name: str, output: GrowingOutput) -> None:
        known = self._allocators.get(name)
        if known is not None:
            known.output = output
            return
        # The context keeps every allocator that it was ever given: one per output, for all runs.
        allocator = self._allocators[name] = _Allocator(output)
        self._log.clear()
        if not self._context.set_output_allocator(name, allocator):
            raise InternalError(f"TensorRT takes no allocator for output '{name}': {self._log.reason()}")

    def shape_of(self, name: str) -> Shape:
        self._log.clear()
        shape = self._context.get_tensor_shape(name)
        try:
            return tuple(shape)
        except ValueError as error:  # Dims of a negative number: how the library reports a failure here.
            raise InternalError(f"TensorRT cannot infer the shape of '{name}': {self._log.reason()}") from error

    def max_bytes(self, name: str) -> int:
        size: int = self._context.get_max_output_size(name)
        return max(0, size)

    def enqueue(self, stream: Stream) -> None:
        self._device.use()
        self._log.clear()
        done = self._context.execute_async_v3(stream.handle)
        failures = [allocator.take_failure() for allocator in self._allocators.values()]
        for failure in filter(None, failures):  # It has more than what the library makes of it.
            raise failure
        if not done:
            raise InternalError(f"TensorRT cannot run the plan: {self._log.reason()}")

    def close(self) -> None:
        if self._opened is None:
            return
        with suppress(RepoAgentError):
            self._device.use()  # The library frees its memory where it goes.
        # The context first: it may still know its allocators.
        self._opened = None
        self._allocators.clear()


class _Allocator(trt.IOutputAllocator):  # type: ignore[misc, unused-ignore]
    """Gives the memory of a :class:`GrowingOutput`. What it raises would be lost, so it keeps it."""

    def __init__(self, output: GrowingOutput) -> None:
        trt.IOutputAllocator.__init__(self)
        self.output = output
        self._failure: Exception | None = None

    def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:
        """Called by TensorRT; 0 for a failure."""
        try:
            return self.output.reallocate(size)
        except Exception as error:
            self._failure = error
            return 0

    def reallocate_output_async(self, tensor_name: str, memory: int, size: int, alignment: int, stream: int) -> int:
        """Called by TensorRT in place of the other one."""
        return self.reallocate_output(tensor_name, memory, size, alignment)

    def notify_shape(self, tensor_name: str, shape: trt.Dims) -> None:
        """Called by TensorRT when the shape is known."""
        self.output.notify(tuple(shape))

    def take_failure(self) -> Exception | None:
        """What could not be raised in a call of TensorRT's, once."""
        failure, self._failure = self._failure, None
        return failure


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
