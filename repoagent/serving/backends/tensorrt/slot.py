"""One run on its way: its buffers, and for each set of shapes what has to be done."""

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

from repoagent.engines.cuda.memory import Grown, Pair
from repoagent.engines.protocol import Shape, TensorSpec
from repoagent.errors import InvalidArgumentError, RepoAgentError, UnsupportedError
from repoagent.serving.requests.tensor import Array

if TYPE_CHECKING:
    from repoagent.config import ModelConfig
    from repoagent.engines.cuda.device import CudaDevice, CudaEvent, CudaGraph, CudaStream
    from repoagent.engines.cuda.engine import TensorRtContext, TensorRtEngine

logger = logging.getLogger(__name__)


class GraphRule:
    """Captures runs of the shapes that the configuration names; of all shapes if it names none."""

    def __init__(self, config: "ModelConfig") -> None:
        """Raises ``UnsupportedError`` for a graph that serves smaller batches as well."""
        specs = config.optimization.cuda.graph_spec
        if any(spec.HasField("graph_lower_bound") for spec in specs):
            raise UnsupportedError(
                f"model '{config.name}' asks for graph_lower_bound, which is not supported: a graph runs for the "
                "shapes of its graph_spec only"
            )
        self._model_name = config.name
        self._wanted = [_shapes(config, spec) for spec in specs]
        self._given_up = False

    def wants(self, shapes: Mapping[str, Shape]) -> bool:
        """Whether runs of inputs of these shapes are to be captured."""
        if self._given_up:
            return False
        return not self._wanted or any(
            all(shapes.get(name) == shape for name, shape in wanted.items()) for wanted in self._wanted
        )

    def capture(self, device: "CudaDevice", stream: "CudaStream", context: "TensorRtContext") -> "CudaGraph | None":
        """What ``context`` has just done, as a graph; None if it cannot be captured, which is logged once.

        Only behind a run of the same shapes: the first run after they have changed does more than later ones. Raises
        ``InternalError`` if that run has failed.
        """
        stream.synchronize()
        problem: RepoAgentError | None = None
        try:
            device.begin_capture(stream)
            try:
                context.enqueue(stream)
            except RepoAgentError as error:
                problem = error
            graph = device.end_capture(stream)  # Also after a failure: a stream that captures executes nothing.
            if problem is None:
                return graph
            graph.close()
        except RepoAgentError as error:
            problem = problem or error
        self._given_up = True
        logger.warning("model '%s' runs without CUDA graphs: %s", self._model_name, problem)
        return None


def _shapes(config: "ModelConfig", spec: Any) -> dict[str, Shape]:
    """The shapes of the inputs in one ``graph_spec``; those that it does not name, as the configuration has them."""
    batch = (max(1, spec.batch_size),) if config.max_batch_size else ()
    shapes = {
        item.name: (*batch, *(item.reshape.shape if item.HasField("reshape") else item.dims))
        for item in config.input
        if not item.is_shape_tensor
    }
    for name, shape in spec.input.items():
        shapes[name] = (*batch, *shape.dim)
    return {name: shape for name, shape in shapes.items() if -1 not in shape}


_LAYOUTS: Final = 64
"""How many sets of shapes an instance remembers."""
_SHAPE_BYTES: Final = 512
"""The memory of a shape tensor. It never moves, as the engine reads it before anything is laid out."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A tensor between host and device."""

    name: str
    array: Array
    """The page-locked memory in the tensor's shape."""
    host: int
    device: int
    size: int
    copied: bool = True
    """False for a shape tensor, which stays on the host."""


@dataclass(slots=True, eq=False)
class Layout:
    """What a run with certain shapes does."""

    profile: int
    shapes: Mapping[str, Shape]
    inputs: Sequence[Transfer]
    outputs: Mapping[str, Transfer]
    addresses: Sequence[tuple[str, int]]
    """What the context is bound to."""
    repeats: bool
    """Whether a run is the same work on the device each time. Outputs of the host are made while it is enqueued, and
    memory for outputs of unknown shapes is asked for meanwhile: of both a graph has nothing."""
    runs: int = 0
    graph: "CudaGraph | None" = None


class Slot:
    """The buffers of one run. An instance has as many as runs may be on their way at once."""

    def __init__(self, engine: "TensorRtEngine", device: "CudaDevice") -> None:
        self._device = device
        self._inputs = [spec for spec in engine.tensors if spec.is_input]
        self._outputs = [spec for spec in engine.tensors if not spec.is_input]
        self.grown: dict[str, Grown] = {}
        self._layouts: OrderedDict[Any, Layout] = OrderedDict()
        with ExitStack() as undo:
            self.done: CudaEvent = undo.enter_context(closing(device.new_event()))
            self.copied: CudaEvent = undo.enter_context(closing(device.new_event()))
            self.ended: CudaEvent = undo.enter_context(closing(device.new_event()))
            self._pairs = {
                spec.name: undo.enter_context(closing(Pair(device, on_device=not spec.on_host)))
                for spec in engine.tensors
                if spec.alias_of is None
            }
            for spec in engine.tensors:
                if spec.on_host:
                    self._pairs[spec.name].fit(_SHAPE_BYTES)
            undo.pop_all()

    def put_shape(self, spec: TensorSpec, values: Array) -> int:
        """Write the values of a shape tensor to where the engine reads them; the address. Raises
        ``InvalidArgumentError`` if there are more of them than any shape has."""
        kind = spec.element.numpy
        assert kind is not None, "the signature refuses elements that no array holds"
        if values.size * kind.itemsize > _SHAPE_BYTES:
            raise InvalidArgumentError(f"shape tensor '{spec.name}' has {values.size} values")
        pair = self._pairs[spec.name]
        pair.host.data[: values.nbytes].view(kind)[:] = values.reshape(-1)
        return pair.address

    def layout(self, key: Any) -> Layout | None:
        return self._layouts.get(key)

    def lay_out(self, key: Any, profile: int, shapes: Mapping[str, Shape], context: "TensorRtContext") -> Layout:
        """Make room, under ``key``, for a run of the shapes of ``context``; ``UnavailableError`` without memory."""
        made = {spec.name: context.shape_of(spec.name) for spec in self._outputs}
        self._fit({**shapes, **made})
        for name, shape in made.items():
            if -1 in shape and name not in self.grown:
                self.grown[name] = Grown(self._device)
        layout = Layout(
            profile,
            shapes,
            [self._transfer(spec, shapes[spec.name]) for spec in self._inputs],
            {spec.name: self._transfer(spec, made[spec.name]) for spec in self._outputs if -1 not in made[spec.name]},
            [
                (spec.name, self._pairs[spec.alias_of or spec.name].address)
                for spec in (*self._inputs, *self._outputs)
                if spec.is_input or -1 not in made[spec.name]
            ],
            repeats=not any(spec.on_host or -1 in made[spec.name] for spec in self._outputs),
        )
        self._layouts[key] = layout
        if len(self._layouts) > _LAYOUTS:
            _, oldest = self._layouts.popitem(last=False)
            _drop_graph(oldest)
        return layout

    def _fit(self, shapes: Mapping[str, Shape]) -> None:
        """Have room for tensors of these shapes. What moves, even if there is not enough room, ends every layout."""
        moved = False
        try:
            for spec in (*self._inputs, *self._outputs):
                if spec.alias_of is None and -1 not in shapes[spec.name]:
                    size = _size(spec, shapes[spec.name])
                    moved = moved or size > self._pairs[spec.name].size
                    self._pairs[spec.name].fit(size)
        finally:
            if moved:
                self.forget()

    def _transfer(self, spec: TensorSpec, shape: Shape) -> Transfer:
        pair, size = self._pairs[spec.alias_of or spec.name], _size(spec, shape)
        kind = spec.element.numpy
        assert kind is not None, "the signature refuses elements that no array holds"
        array = pair.host.data[:size].view(kind).reshape(shape)
        return Transfer(spec.name, array, pair.host.address, pair.address, size, copied=not spec.on_host)

    def forget(self) -> None:
        """The addresses have changed: nothing that was laid out is true any more."""
        self.drop_graphs()
        self._layouts.clear()

    def drop_graphs(self) -> None:
        """Every layout is captured again, after it has run once more; none of its runs is on its way."""
        for layout in self._layouts.values():
            _drop_graph(layout)

    def close(self) -> None:
        """Free everything; no run is on its way."""
        self.forget()
        for pair in self._pairs.values():
            pair.close()
        for output in self.grown.values():
            output.close()
        self.grown.clear()
        for event in (self.copied, self.done, self.ended):
            event.close()


def _size(spec: TensorSpec, shape: Shape) -> int:
    return spec.element.byte_size(prod(shape))


def _drop_graph(layout: Layout) -> None:
    if layout.graph is not None:
        layout.graph.close()
        layout.graph = None
    layout.runs = 0
