"""What this program calls of ``tensorrt`` to execute plans, over engines of the stand-in, and as strict as documented.

A builder is here for the tests that need a GPU: it makes plans of the stand-in.

Failures are None or False and a line to the logger, as in the real one. ``test_names.py`` compares names and parameters
with the list that was read from the real one.
"""

# ruff: noqa: A002 - the names of parameters are the real ones
import enum
from typing import Any

from cuda.bindings import runtime as cuda

from repoagent.engines.protocol import EngineOptions, Profile, ShapeRange
from repoagent.errors import RepoAgentError
from tests.engines.standin.engine import StandInContext, StandInEngine
from tests.engines.standin.plan import StandInPlan

__version__ = "11.4.0.106"
HEAD = b"ftrt".ljust(64, b"\0")
"""What real plans begin with; that of the stand-in is behind it."""


class DataType(enum.Enum):
    FLOAT, HALF, INT8, INT32, BOOL, UINT8, FP8, BF16, INT64, INT4, FP4, E8M0 = range(12)


class TensorFormat(enum.Enum):
    LINEAR = 0


class TensorIOMode(enum.Enum):
    NONE, INPUT, OUTPUT = range(3)


class TensorLocation(enum.Enum):
    DEVICE, HOST = range(2)


class Dims:
    """Neither a tuple nor equal to one; iterated by its places."""

    def __init__(self, sizes: Any, count: int | None = None) -> None:
        self._sizes: tuple[int, ...] = tuple(sizes)
        self._count = count

    def __len__(self) -> int:
        return len(self._sizes) if self._count is None else self._count

    def __getitem__(self, place: int) -> int:
        return self._sizes[place]

    def __eq__(self, other: object) -> bool:
        raise TypeError("Dims compare with lists and tuples only")

    __hash__ = None  # type: ignore[assignment]


class ILogger:
    class Severity(enum.Enum):
        INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = Severity

    def __init__(self) -> None:
        self.made = True

    def log(self, severity: Severity, msg: str) -> None:
        raise NotImplementedError


class IOutputAllocator:
    def __init__(self) -> None:
        self.made = True


def _of(*kinds: Any) -> None:
    """As pybind11 does: a wrong type raises before anything is called. Pairs of a value and its type."""
    for one, kind in kinds:
        if type(one) is not kind:
            raise TypeError(f"incompatible function arguments: {one!r} is not {kind.__name__}")


class Runtime:
    def __init__(self, logger: ILogger) -> None:
        if not logger.made:
            raise TypeError("__init__() must be called when overriding __init__")
        self._logger = logger
        self.engine_host_code_allowed = False

    def deserialize_cuda_engine(self, serialized_engine: Any) -> "ICudaEngine | None":
        data = bytes(serialized_engine)
        try:
            plan = StandInPlan.of(data[len(HEAD) :])
            options = EngineOptions(cuda.current(), self.engine_host_code_allowed)
            return ICudaEngine(StandInEngine(plan, cuda.DEVICES[cuda.current()], options), self._logger, self)
        except RepoAgentError as error:
            self._logger.log(ILogger.ERROR, f"deserializeCudaEngine: {error}")
            return None


class ICudaEngine:
    device_memory_size_v2 = 0
    streamable_weights_size = 0

    def __init__(self, inner: StandInEngine, logger: ILogger, runtime: Runtime) -> None:
        self._inner, self._logger, self._runtime = inner, logger, runtime
        self._specs = {spec.name: spec for spec in inner.tensors}
        self.name = inner.name
        self.num_io_tensors = len(inner.tensors)
        self.num_optimization_profiles = len(inner.profiles)

    def create_execution_context(self) -> "IExecutionContext | None":
        return IExecutionContext(self)

    def get_tensor_name(self, index: int) -> str:
        return self._inner.tensors[index].name

    def get_tensor_format(self, name: str, profile_index: int = 0) -> TensorFormat:
        _of((name, str), (profile_index, int))
        return TensorFormat.LINEAR

    def get_tensor_format_desc(self, name: str, profile_index: int = 0) -> str:
        return "Row major linear FP32 format (kLINEAR)"

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType[self._specs[name].element.name]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if self._specs[name].is_input else TensorIOMode.OUTPUT

    def get_tensor_shape(self, name: str) -> Dims:
        return Dims(self._specs[name].shape)

    def get_tensor_location(self, name: str) -> TensorLocation:
        return TensorLocation.HOST if self._specs[name].on_host else TensorLocation.DEVICE

    def get_aliased_input_tensor(self, name: str) -> str | None:
        return self._specs[name].alias_of

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Dims]:
        _of((name, str), (profile_index, int))
        found = self._inner.profiles[profile_index].shapes.get(name)
        if found is None:  # The stand-in allows what it was given no range for.
            shape = self._specs[name].shape
            return [Dims(1 if size < 0 else size for size in shape)] * 2 + [
                Dims(1 << 12 if size < 0 else size for size in shape)
            ]
        return [Dims(found.least), Dims(found.best), Dims(found.most)]

    def get_tensor_profile_values(self, name: int, profile_index: str) -> list[list[int]]:
        """The names are the real ones, and the wrong way round."""
        _of((name, int), (profile_index, str))
        found = self._inner.profiles[name].values.get(profile_index)
        return [] if found is None else [list(found.least), list(found.best), list(found.most)]


class IExecutionContext:
    def __init__(self, engine: ICudaEngine) -> None:
        self._engine = engine  # As keep_alive does.
        self._inner: StandInContext = engine._inner.new_context()
        self._addresses: set[str] = set()
        self._allocators: dict[str, _Growing] = {}
        self.kept: list[IOutputAllocator] = []
        """What pybind11 keeps alive: every allocator that was ever set."""

    def _said(self, what: str, call: Any) -> bool:
        try:
            call()
        except (RepoAgentError, IndexError) as error:
            self._engine._logger.log(ILogger.ERROR, f"{what}: {error}")
            return False
        return True

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        _of((profile_index, int), (stream_handle, int))
        stream, _ = cuda.stream_of(stream_handle)
        return self._said("setOptimizationProfileAsync", lambda: self._inner.use_profile(profile_index, stream))

    def set_input_shape(self, name: str, shape: Any) -> bool:
        _of((name, str), (shape, tuple), *((size, int) for size in shape))
        return self._said("setInputShape", lambda: self._inner.set_shape(name, shape))

    def set_tensor_address(self, name: str, memory: int) -> bool:
        _of((name, str), (memory, int))
        return name in self._engine._specs and self._said("setTensorAddress", lambda: self._inner.bind(name, memory))

    def set_output_allocator(self, name: str, output_allocator: IOutputAllocator) -> bool:
        if not output_allocator.made:
            raise TypeError("__init__() must be called when overriding __init__")
        self.kept.append(output_allocator)
        self._allocators[name] = growing = _Growing(name, output_allocator)
        self._inner.grow(name, growing)
        return True

    def get_tensor_shape(self, name: str) -> Dims:
        try:
            return Dims(self._inner.shape_of(name))
        except RepoAgentError as error:
            self._engine._logger.log(ILogger.ERROR, f"getTensorShape: {error}")
            return Dims((), -1)

    def execute_async_v3(self, stream_handle: int) -> bool:
        _of((stream_handle, int))
        stream, device = cuda.stream_of(stream_handle)
        if device != cuda.current() or device != self._engine._inner.device.index:
            self._engine._logger.log(ILogger.ERROR, "enqueueV3: invalid resource handle: another GPU is current")
            return False
        done = self._said("enqueueV3", lambda: self._inner.enqueue(stream))
        if done and self._allocators:  # Their shapes are known when the call returns.
            self._said("enqueueV3", stream.synchronize)
            done = not any(one.refused for one in self._allocators.values())
        return done


class _Growing:
    """An allocator as the stand-in knows it."""

    def __init__(self, name: str, allocator: Any) -> None:
        self._name, self._allocator, self.refused = name, allocator, False

    def reallocate(self, size: int) -> int:
        address = self._allocator.reallocate_output_async(self._name, 0, size, 256, 0)
        self.refused = not address
        return int(address)

    def notify(self, shape: tuple[int, ...]) -> None:
        self._allocator.notify_shape(self._name, Dims(shape))


class NetworkDefinitionCreationFlag(enum.Enum):
    STRONGLY_TYPED = 1

    def __int__(self) -> int:
        return int(self.value)


class BuilderFlag(enum.Enum):
    TF32 = 7


class INetworkDefinition:
    _model = b""


class IOptimizationProfile:
    def __init__(self) -> None:
        self.shapes: dict[str, ShapeRange] = {}
        self.values: dict[str, ShapeRange] = {}

    def set_shape(self, input: str, min: Any, opt: Any, max: Any) -> None:
        self.shapes[input] = ShapeRange(tuple(min), tuple(opt), tuple(max))

    def set_shape_input(self, input: str, min: Any, opt: Any, max: Any) -> None:
        self.values[input] = ShapeRange(tuple(min), tuple(opt), tuple(max))


class IBuilderConfig:
    def __init__(self) -> None:
        self._profiles: list[IOptimizationProfile] = []

    def clear_flag(self, flag: BuilderFlag) -> None:
        _of((flag, BuilderFlag))

    def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
        self._profiles.append(profile)
        return len(self._profiles) - 1


class OnnxParser:
    def __init__(self, network: INetworkDefinition, logger: ILogger) -> None:
        self._network = network

    def parse(self, model: bytes, path: str = "") -> bool:
        self._network._model = model
        return True


class Builder:
    def __init__(self, logger: ILogger) -> None:
        self._logger = logger

    def create_network(self, flags: int = 0) -> INetworkDefinition:
        _of((flags, int))
        return INetworkDefinition()

    def create_builder_config(self) -> IBuilderConfig:
        return IBuilderConfig()

    def create_optimization_profile(self) -> IOptimizationProfile:
        return IOptimizationProfile()

    def build_serialized_network(self, network: INetworkDefinition, config: IBuilderConfig) -> bytes | None:
        profiles = [Profile(one.shapes, one.values) for one in config._profiles]
        on_host = frozenset(name for one in profiles for name in one.values)
        return HEAD + StandInPlan(network._model, profiles, on_host).to_bytes()
