"""Engines and contexts of TensorRT."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from repoagent.engines.bindings import trt
from repoagent.engines.cuda.device import CudaDevice, CudaStream
from repoagent.engines.cuda.memory import Grown
from repoagent.engines.protocol import ElementType, Profile, Shape, ShapeRange, TensorSpec
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
    """A plan that was opened on a device. Its contexts may run at once."""

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
        """Bytes of device memory that each context takes for itself."""

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
    """One execution at a time, on one stream."""

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

    def use_profile(self, index: int, stream: CudaStream) -> None:
        """Choose the profile. All shapes must be set again."""
        self._device.use()
        self._log.clear()
        if not self._context.set_optimization_profile_async(index, stream.handle):
            raise InternalError(f"TensorRT cannot use profile {index}: {self._log.reason()}")

    def set_shape(self, name: str, shape: Shape) -> None:
        """The shape of an input; raises ``InvalidArgumentError`` if the profile does not allow it."""
        self._log.clear()
        if not self._context.set_input_shape(name, shape):
            raise InvalidArgumentError(f"input '{name}' cannot have shape {list(shape)}: {self._log.reason()}")

    def bind(self, name: str, address: int) -> None:
        """Where an input or output lies: on the device, or on the host for a shape tensor."""
        self._log.clear()
        if not self._context.set_tensor_address(name, address):
            raise InternalError(f"TensorRT cannot find '{name}' at {address:#x}: {self._log.reason()}")

    def grow(self, name: str, output: Grown) -> None:
        """Where an output lies whose shape only the run determines."""
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
        """The shape that an output will have. A dimension that only the run determines is -1.

        Shapes, and addresses of shape tensors, of all inputs must be set.
        """
        self._log.clear()
        shape = self._context.get_tensor_shape(name)
        try:
            return tuple(shape)
        except ValueError as error:  # Dims of a negative number: how the library reports a failure here.
            raise InternalError(f"TensorRT cannot infer the shape of '{name}': {self._log.reason()}") from error

    def enqueue(self, stream: CudaStream) -> None:
        """Enqueue one execution, or raise ``InternalError``. What was set may be set again at once."""
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
    """Gives the memory of a :class:`Grown`. What that raises would be lost: it is kept."""

    def __init__(self, output: Grown) -> None:
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
