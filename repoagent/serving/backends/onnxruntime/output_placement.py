"""Large outputs made where the caller wants them, instead of being copied there."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from repoagent.serving.backends.signatures import Signature, TensorInfo
from repoagent.serving.requests.request import OutputPlace
from repoagent.serving.requests.tensor import NUMPY_TYPES, Array, DataType, Tensor

__all__ = ["Placer"]

_WORTHWHILE: Final = 1 << 16
"""Bytes. Telling ONNX Runtime where an output goes takes longer than copying a smaller one."""
_ALIGNMENT: Final = 64
_UNPLACEABLE: Final = frozenset({DataType.BYTES, DataType.BF16})


class Placer:
    """Knows the shapes that the outputs of a model will have, as far as its inputs determine them."""

    def __init__(self, signature: Signature, *, batching: bool) -> None:
        """``batching``: the first dimension of every tensor is that of the batch."""
        self._batching = batching
        self._outputs = {
            info.name: info
            for info in signature.outputs
            if info.data_type not in _UNPLACEABLE and -1 not in info.dims[batching:]
        }
        self._sizes = {
            name: prod(info.dims[batching:]) * NUMPY_TYPES[info.data_type].itemsize
            for name, info in self._outputs.items()
        }
        """Bytes of each output that has always the same, or of a row of it."""
        self._plain = not any(
            info.data_type in _UNPLACEABLE for info in (*signature.inputs, *signature.optional, *signature.outputs)
        )

    def targets(
        self, inputs: Mapping[str, Tensor], names: Sequence[str], places: Mapping[str, OutputPlace]
    ) -> dict[str, Array]:
        """The arrays in ``places`` for those of the outputs ``names`` that can and should be made there.

        Raises:
            InvalidArgumentError: a place is gone.
        """
        if not self._plain or not inputs:
            return {}
        batch = next(iter(inputs.values())).array.shape[:1] if self._batching else ()
        rows = batch[0] if batch else 1
        found = {}
        for name in names:
            size = self._sizes.get(name, 0) * rows
            if size >= _WORTHWHILE and name in places:
                target = _place(self._outputs[name], batch, size, places[name])
                if target is not None:
                    found[name] = target
        return found

    @staticmethod
    def run(
        session: Any, inputs: Mapping[str, Tensor], names: Sequence[str], targets: Mapping[str, Array], options: Any
    ) -> list[Array]:
        """Run ``session``; the outputs ``names``, those of ``targets`` in them.

        Raises:
            Exception: whatever ONNX Runtime raises, also if an output has another shape than its target.
        """
        binding = session.io_binding()
        arrays = {name: np.ascontiguousarray(tensor.array) for name, tensor in inputs.items()}
        for name, array in arrays.items():
            binding.bind_cpu_input(name, array)
        for name in names:
            target = targets.get(name)
            if target is None:
                binding.bind_output(name)
            else:
                address = target.ctypes.data
                binding.bind_output(name, "cpu", 0, target.dtype.type, list(target.shape), address)
        session.run_with_iobinding(binding, options)
        values = binding.get_outputs()
        return [targets[name] if name in targets else values[at].numpy() for at, name in enumerate(names)]


def _place(info: TensorInfo, batch: tuple[int, ...], size: int, place: OutputPlace) -> Array | None:
    view = place.room(size)
    if view is None:
        return None
    target: Array = np.ndarray(batch + info.dims[len(batch) :], NUMPY_TYPES[info.data_type], view)
    return target if target.ctypes.data % _ALIGNMENT == 0 else None
