"""The stand-in's engine: a session of ONNX Runtime that reads and writes at addresses."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final

import numpy as np

from repoagent.engines.cuda.memory import Grown
from repoagent.engines.protocol import ElementType, EngineOptions, Profile, Shape, TensorSpec
from repoagent.errors import InternalError, InvalidArgumentError, UnsupportedError
from tests.engines.standin.device import ALIGNMENT, StandInDevice, StandInStream, view
from tests.engines.standin.plan import StandInPlan

_ELEMENTS: Final = {
    "tensor(float)": ElementType.FLOAT,
    "tensor(float16)": ElementType.HALF,
    "tensor(bfloat16)": ElementType.BF16,
    "tensor(int8)": ElementType.INT8,
    "tensor(uint8)": ElementType.UINT8,
    "tensor(int32)": ElementType.INT32,
    "tensor(int64)": ElementType.INT64,
    "tensor(bool)": ElementType.BOOL,
    "tensor(float8e4m3fn)": ElementType.FP8,
    "tensor(int4)": ElementType.INT4,
    "tensor(float4e2m1)": ElementType.FP4,
}
_BFLOAT16: Final = 16
"""ONNX's number for a type that NumPy does not know."""
_BINDINGS: Final = 16
"""How many bindings a context keeps: making one takes longer than a small model."""

Binding = tuple[Any, dict[str, tuple[int, int]]]


class StandInEngine:
    """In the place of ``TensorRtEngine``."""

    memory_needed = 0

    def __init__(self, plan: StandInPlan, device: StandInDevice, options: EngineOptions) -> None:
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            session = onnxruntime.InferenceSession(plan.model, settings, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise InternalError(f"the stand-in cannot open its plan: {error}") from error
        self.device = device
        self.options = options
        self.session: Any = session
        nodes = {True: session.get_inputs(), False: session.get_outputs()}
        self.symbols: dict[str, tuple[Any, ...]] = {
            node.name: tuple(node.shape) for side in nodes.values() for node in side
        }
        self.tensors = tuple(_spec(node, is_input, plan) for is_input, side in nodes.items() for node in side)
        self.profiles = tuple(plan.profiles) or (Profile(),)
        self.name = "stand-in"

    def new_context(self) -> "StandInContext":
        return StandInContext(self)

    def close(self) -> None:
        self.session = None


def _spec(node: Any, is_input: bool, plan: StandInPlan) -> TensorSpec:
    element = _ELEMENTS.get(node.type)
    if element is None:
        raise UnsupportedError(f"tensor '{node.name}' has type '{node.type}', which TensorRT does not have")
    shape = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape)
    return TensorSpec(node.name, is_input, element, shape, node.name in plan.on_host, plan.aliases.get(node.name))


class StandInContext:
    """In the place of ``TensorRtContext``."""

    def __init__(self, engine: StandInEngine) -> None:
        self._engine = engine
        self._specs = {spec.name: spec for spec in engine.tensors}
        self._inputs = [spec for spec in engine.tensors if spec.is_input]
        self._outputs = [spec for spec in engine.tensors if not spec.is_input]
        self._profile = engine.profiles[0]
        self._shapes: dict[str, Shape] = {spec.name: spec.shape for spec in self._inputs}
        self._addresses: dict[str, int] = {}
        self._growing: dict[str, Grown] = {}
        self._kept: OrderedDict[Any, Binding] = OrderedDict()
        self._plain = not any(spec.on_host for spec in engine.tensors)
        self._settled: Any = None
        """The profile and shapes of the last run: what a change of them leaves to do cannot be captured."""

    def use_profile(self, index: int, stream: StandInStream) -> None:
        self._profile = self._engine.profiles[index]
        self._shapes = {spec.name: spec.shape for spec in self._inputs}

    def set_shape(self, name: str, shape: Shape) -> None:
        spec = self._specs[name]
        allowed = self._profile.shapes.get(name)
        fits = len(shape) == len(spec.shape) and all(
            fixed in (-1, given) for fixed, given in zip(spec.shape, shape, strict=True)
        )
        if not fits or (allowed is not None and not allowed.allows(shape)):
            raise InvalidArgumentError(
                f"input '{name}' has shape {list(shape)}, and the plan's profile allows {allowed or list(spec.shape)}"
            )
        self._shapes[name] = shape

    def bind(self, name: str, address: int) -> None:
        if address % ALIGNMENT and not self._specs[name].on_host:
            raise InternalError(f"'{name}' cannot lie at {address:#x}, which is not a multiple of {ALIGNMENT}")
        self._addresses[name] = address

    def grow(self, name: str, output: Any) -> None:
        self._growing[name] = output

    def shape_of(self, name: str) -> Shape:
        symbols = self._engine.symbols
        known = {
            symbol: size
            for spec in self._inputs
            for symbol, size in zip(symbols[spec.name], self._shapes[spec.name], strict=True)
        }
        return tuple(
            dim if isinstance(dim, int) else known.get(dim, -1) if isinstance(dim, str) else -1 for dim in symbols[name]
        )

    def enqueue(self, stream: StandInStream) -> None:
        if any(-1 in shape for shape in self._shapes.values()):
            open_ones = [name for name, shape in self._shapes.items() if -1 in shape]
            raise InternalError(f"the shapes of {', '.join(open_ones)} were not set")
        self._check_capture(stream)
        stream.enqueue(self._execution())

    def _check_capture(self, stream: StandInStream) -> None:
        now = (id(self._profile), dict(self._shapes))
        if not stream.capturing:
            self._settled = now
        elif self._settled != now:
            raise InternalError("the shapes have changed since the last run, so this one cannot be captured")
        elif self._growing or any(spec.on_host for spec in self._outputs):
            raise InternalError("outputs of the host, or of unknown shapes, cannot be captured")

    def _execution(self) -> Callable[[], None]:
        """What this execution does, with the shapes and addresses of now; shape tensors are read now."""
        engine = self._engine
        key = (tuple(self._shapes.values()), tuple(self._addresses.values()))
        kept = self._kept.get(key) if self._plain and not self._growing else None
        if kept is None:
            kept = self._bind_all()
            if self._plain and not self._growing:
                self._kept[key] = kept
                if len(self._kept) > _BINDINGS:
                    self._kept.popitem(last=False)
        binding, sizes = kept
        growing = dict(self._growing)
        names = [spec.name for spec in self._outputs]
        check, session = engine.device.check, engine.session

        def execute() -> None:
            for address, size in sizes.values():
                check(address, size)
            try:
                session._sess.run_with_iobinding(binding._iobinding, None)
            except Exception as error:
                raise InternalError(f"the stand-in's run failed: {error}") from error
            if growing:
                _hand_over(dict(zip(names, binding.get_outputs(), strict=True)), growing, self._specs)

        return execute

    def _bind_all(self) -> Binding:
        binding = self._engine.session.io_binding()
        sizes: dict[str, tuple[int, int]] = {}
        for spec in self._inputs:
            shape, address = self._shapes[spec.name], self._address(spec.name)
            size = spec.element.byte_size(prod(shape))
            if spec.on_host:
                kind = np.dtype(_type(spec))
                values = view(address, size).view(kind).reshape(shape).copy()
                binding.bind_cpu_input(spec.name, values)
                continue
            sizes[spec.name] = address, size
            binding.bind_input(spec.name, "cpu", 0, _type(spec), list(shape), address)
        for spec in self._outputs:
            if spec.name in self._growing:
                binding.bind_output(spec.name)
                continue
            shape, address = self.shape_of(spec.name), self._address(spec.name)
            if not spec.on_host:
                sizes[spec.name] = address, spec.element.byte_size(prod(shape))
            binding.bind_output(spec.name, "cpu", 0, _type(spec), list(shape), address)
        return binding, sizes

    def _address(self, name: str) -> int:
        address = self._addresses.get(name)
        if not address:
            raise InternalError(f"'{name}' was not bound to an address")
        return address

    def close(self) -> None:
        self._kept.clear()
        self._growing.clear()


def _type(spec: TensorSpec) -> Any:
    if spec.element is ElementType.BF16:
        return _BFLOAT16
    kind = spec.element.numpy
    if kind is None:
        raise UnsupportedError(f"the stand-in cannot bind '{spec.name}', whose elements are {spec.element.name}")
    return kind.type


def _hand_over(values: Mapping[str, Any], growing: Mapping[str, Grown], specs: Mapping[str, TensorSpec]) -> None:
    for name, output in growing.items():
        array = np.ascontiguousarray(values[name].numpy())
        address = output.reallocate(max(1, array.nbytes))
        if specs[name].element.numpy is None or not address:
            raise InternalError(f"there is no memory for output '{name}'")
        view(address, array.nbytes)[:] = array.reshape(-1).view(np.uint8)
        output.notify(tuple(array.shape))
