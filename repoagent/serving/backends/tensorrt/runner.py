"""Running batches on one context of an engine."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Final

import numpy as np

from repoagent.engines.protocol import Profiles, Shape, ShapeRange
from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError, UnavailableError
from repoagent.serving.backends.tensorrt.signature import DATA_TYPES
from repoagent.serving.backends.tensorrt.slot import GraphRule, Layout, Slot
from repoagent.serving.instances.backend import BatchRunner, Capability
from repoagent.serving.requests.tensor import NUMPY_TYPES, Array, DataType, Tensor

if TYPE_CHECKING:
    from repoagent.engines.cuda.device import CudaDevice
    from repoagent.engines.cuda.engine import TensorRtEngine

_ONCE: Final = 1
"""Runs of a layout that are not worth a graph."""


@dataclass(slots=True, eq=False)
class Begun:
    """A run that is on its way."""

    slot: Slot
    layout: Layout
    names: Sequence[str]


class TensorRtRunner(BatchRunner):
    """One instance: a context, its streams, and the buffers of ``depth`` runs.

    A run goes through three streams: to the device, through the engine, and back. So the copies of one run overlap
    with the computing of another. With a ``depth`` of one there is only one stream, as nothing can overlap.
    """

    def __init__(
        self,
        engine: "TensorRtEngine",
        device: "CudaDevice",
        profiles: Profiles,
        outputs: Sequence[str],
        *,
        depth: int = 1,
        graphs: GraphRule | None = None,
        max_rows: int = 0,
    ) -> None:
        """``max_rows``: of the largest batch, whose memory is reserved now; 0: the profiles decide. Raises
        ``UnavailableError`` if the device has not enough."""
        self.depth = depth
        self.capabilities = Capability.OVERLAPS if depth > 1 else Capability.NONE
        self._device = device
        self._profiles = profiles
        self._graphs = graphs
        self._inputs = [spec for spec in engine.tensors if spec.is_input]
        self._types = {spec.name: DATA_TYPES[spec.element] for spec in engine.tensors}
        self._names = tuple(outputs)
        self._bound: Layout | None = None
        self._shaped: Mapping[str, Shape] | None = None
        self._has_shape_tensors = any(spec.on_host for spec in self._inputs)
        self._closed = False
        self._resources = ExitStack()
        try:
            own = self._resources.enter_context
            streams = [own(closing(device.new_stream())) for _ in range(1 if depth == 1 else 3)]
            self._way_in, self._compute, self._way_out = streams * (3 // len(streams))
            self._context = own(closing(engine.new_context()))
            self._slots = [own(closing(Slot(engine, device))) for _ in range(depth)]
            self._resources.callback(self._settle)
            self._free = list(self._slots)
            self._profile = profiles.indices[0]
            self._context.use_profile(self._profile, self._compute)
            self._reserve(engine, max_rows)
        except BaseException:
            self.close()
            raise

    def _reserve(self, engine: "TensorRtEngine", max_rows: int) -> None:
        """Have memory for the largest run of each profile: what does not fit is refused when the model is loaded."""
        if self._has_shape_tensors:
            return  # What they make of the other shapes only their values show.
        for index in reversed(self._profiles.indices):  # The largest first, so that nothing moves.
            ranges = engine.profiles[index].shapes
            shapes = {spec.name: ranges[spec.name].most if spec.name in ranges else spec.shape for spec in self._inputs}
            if max_rows:
                shapes = {
                    name: (_capped(shape[0], max_rows, ranges.get(name)), *shape[1:]) for name, shape in shapes.items()
                }
            if any(-1 in shape for shape in shapes.values()):
                continue
            self._use(index, shapes)
            for slot in self._slots:
                slot.lay_out(tuple(shapes.values()), index, shapes, self._context)

    # -- the plain form --------------------------------------------------------------------------------------------

    def run(self, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
        return self.finish(self.begin({name: (tensor.array,) for name, tensor in inputs.items()}, outputs))

    # -- the two halves --------------------------------------------------------------------------------------------

    def begin(self, inputs: Mapping[str, Sequence[Array]], outputs: Sequence[str]) -> Begun:
        if self._closed:
            raise UnavailableError("the model has been unloaded")
        if not self._free:
            raise InternalError(f"{self.depth} runs are on their way, which is all that this instance has memory for")
        slot = self._free.pop()
        try:
            layout = self._layout(slot, inputs)
            self._bind(slot, layout)
            self._join(layout, inputs)
            names = tuple(outputs) or self._names
            self._enqueue(slot, layout, names)
        except BaseException:
            self._recover(slot)
            raise
        return Begun(slot, layout, names)

    def finish(self, begun: Begun) -> dict[str, Tensor]:
        slot, types, known = begun.slot, self._types, begun.layout.outputs
        try:
            slot.ended.wait()
            if slot.grown:
                self._fetch_grown(slot, begun.names)
            # What is returned may be looked at while the next run writes the page-locked memory: it is a copy.
            made = {
                name: Tensor(
                    types[name],
                    (known[name].array if name in known else _grown_array(slot, name, types[name])).copy(),
                )
                for name in begun.names
            }
        except BaseException:
            self._recover(slot)
            raise
        self._free.append(slot)
        return made

    def _layout(self, slot: Slot, inputs: Mapping[str, Sequence[Array]]) -> Layout:
        """What is to be done for inputs of these shapes; worked out once."""
        shapes: dict[str, Shape] = {}
        for spec in self._inputs:
            parts = inputs.get(spec.name)
            if parts is None:
                raise InvalidArgumentError(f"input '{spec.name}' of the plan is missing")
            first = parts[0].shape
            shapes[spec.name] = first if len(parts) == 1 else (sum(len(part) for part in parts), *first[1:])
        values: dict[str, tuple[int, ...]] = {}
        if self._has_shape_tensors:
            values = {
                spec.name: tuple(inputs[spec.name][0].reshape(-1).tolist()) for spec in self._inputs if spec.on_host
            }
        key = (*shapes.values(), *values.values())
        layout = slot.layout(key)
        if values:
            self._put_shape_tensors(slot, inputs)
        if layout is None:
            profile = self._profiles.choose(shapes, values)
            self._use(profile, shapes)
            layout = slot.lay_out(key, profile, shapes, self._context)
            self._bound = None
        return layout

    def _put_shape_tensors(self, slot: Slot, inputs: Mapping[str, Sequence[Array]]) -> None:
        for spec in self._inputs:
            if spec.on_host:
                address = slot.put_shape(spec, inputs[spec.name][0])
                self._context.bind(spec.name, address)

    def _use(self, profile: int, shapes: Mapping[str, Shape]) -> None:
        if profile != self._profile:
            if self._graphs is not None:
                # They were captured with memory of the context's, which may move when the profile changes.
                self._compute.synchronize()
                for slot in self._slots:
                    slot.drop_graphs()
            self._context.use_profile(profile, self._compute)
            self._profile, self._shaped = profile, None
        if self._shaped != shapes:
            self._shaped = None
            for name, shape in shapes.items():
                self._context.set_shape(name, shape)
            self._shaped = shapes

    def _bind(self, slot: Slot, layout: Layout) -> None:
        if self._bound is layout or layout.graph is not None:  # A graph has its shapes and addresses in it.
            return
        self._use(layout.profile, layout.shapes)
        for name, address in layout.addresses:
            self._context.bind(name, address)
        for name, output in slot.grown.items():
            self._context.grow(name, output)
        self._bound = layout

    @staticmethod
    def _join(layout: Layout, inputs: Mapping[str, Sequence[Array]]) -> None:
        """Put the inputs into page-locked memory, where the device fetches them: the only copy on the host."""
        for transfer in layout.inputs:
            parts = inputs[transfer.name]
            if len(parts) == 1:
                transfer.array[...] = parts[0]
            else:
                np.concatenate(parts, out=transfer.array)

    def _enqueue(self, slot: Slot, layout: Layout, names: Sequence[str]) -> None:
        device, compute, way_in, way_out = self._device, self._compute, self._way_in, self._way_out
        for transfer in layout.inputs:
            if transfer.copied:
                device.copy_in(transfer.device, transfer.host, transfer.size, way_in)
        if way_in is not compute:
            slot.copied.record(way_in)
            compute.wait_for(slot.copied)
        self._execute(layout)
        if way_out is not compute:
            slot.done.record(compute)
            way_out.wait_for(slot.done)
        for name in names:
            back = layout.outputs.get(name)
            if back is not None and back.copied:
                device.copy_out(back.host, back.device, back.size, way_out)
        slot.ended.record(way_out)

    def _execute(self, layout: Layout) -> None:
        layout.runs += 1
        if layout.graph is not None:
            layout.graph.launch(self._compute)
            return
        self._context.enqueue(self._compute)
        graphs = self._graphs if layout.repeats and layout.runs > _ONCE else None
        if graphs is not None and graphs.wants(layout.shapes):
            layout.graph = graphs.capture(self._device, self._compute, self._context)

    def _fetch_grown(self, slot: Slot, names: Sequence[str]) -> None:
        """Copy the outputs whose shapes are known only now."""
        for name in names:
            output = slot.grown.get(name)
            if output is not None and (size := _grown_size(output.shape, self._types[name])):
                pair = output.pair
                self._device.copy_out(pair.host.address, pair.address, size, self._way_out)
        slot.ended.record(self._way_out)
        slot.ended.wait()

    def _recover(self, slot: Slot) -> None:
        """A run failed: what was enqueued of it ends before its buffers are used again."""
        self._bound = self._shaped = None
        self._settle()
        self._free.append(slot)

    def _settle(self) -> None:
        for stream in (self._way_in, self._compute, self._way_out):
            with suppress(RepoAgentError):  # The failure of a run, once more.
                stream.synchronize()

    def close(self) -> None:
        """Free the buffers, the streams and the context; no run is on its way."""
        if self._closed:
            return
        self._closed = True
        self._resources.close()


def _capped(rows: int, most: int, allowed: ShapeRange | None) -> int:
    """The rows of the largest batch that a model of ``most`` rows asks for, if a profile allows so few."""
    least = allowed.least[0] if allowed is not None else 1
    return most if rows < 0 else max(least, min(rows, most))


def _grown_size(shape: Shape, data_type: DataType) -> int:
    return prod(shape) * NUMPY_TYPES[data_type].itemsize


def _grown_array(slot: Slot, name: str, data_type: DataType) -> Array:
    output = slot.grown[name]
    size = _grown_size(output.shape, data_type)
    array: Array = output.pair.host.data[:size].view(NUMPY_TYPES[data_type]).reshape(output.shape)
    return array
