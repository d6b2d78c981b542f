"""Running batches on a session: values become what it takes, and outputs go where a request wants them."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import onnxruntime

from repoagent import turns
from repoagent.errors import InvalidArgumentError, RepoAgentError, UnavailableError
from repoagent.serving.backends.onnxruntime.session import translate
from repoagent.serving.backends.signatures import Signature, TensorInfo
from repoagent.serving.instances.backend import BatchRunner, Capability
from repoagent.serving.requests.request import OutputPlace
from repoagent.serving.requests.tensor import NUMPY_TYPES, Array, DataType, Tensor

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
        """The arrays in ``places`` for those of the outputs ``names`` that can and should be made there;
        ``InvalidArgumentError`` if a place is gone."""
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
        """Run ``session``; the outputs ``names``, those of ``targets`` in them. Raises what ONNX Runtime raises, also
        if an output has another shape than its target."""
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


_BFLOAT16: Final = 16  # TensorProto.BFLOAT16


def _decode(element: Any) -> str:
    return element.decode("utf-8") if isinstance(element, bytes) else str(element)


def _map(function: Any, array: Array) -> Array:
    result = np.empty(array.size, dtype=object)
    result[:] = [function(element) for element in array.flat]
    return result.reshape(array.shape)


def bytes_to_text(name: str, array: Array) -> Array:
    """An array of ``str`` from one of ``bytes``, which has to be UTF-8: the string tensors of ONNX hold such text."""
    try:
        return _map(_decode, array)
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"input '{name}' has an element that is not UTF-8 text, which is all that an ONNX string tensor can hold: "
            f"{error.reason} at byte {error.start}"
        ) from None


def bytes_from_text(array: Array) -> Array:
    """An array of ``bytes`` from one of ``str``."""
    return _map(lambda element: str(element).encode("utf-8"), array)


def bfloat16_to_value(array: Array) -> Any:
    """A raw OrtValue of type bfloat16 over the bits in ``array`` (uint16)."""
    bits = np.ascontiguousarray(array, dtype=np.uint16)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _BFLOAT16)._ortvalue


def bfloat16_from_value(value: Any) -> Array:
    """The bits of a raw OrtValue of type bfloat16, copied (NumPy has no such type)."""
    shape = tuple(value.shape())
    size = value.tensor_size_in_bytes()
    return np.frombuffer(ctypes.string_at(value.data_ptr(), size), dtype=np.uint16).reshape(shape)


class OnnxRuntimeRunner(BatchRunner):
    """One instance. All instances of a version run on one session, which is thread-safe.

    For numbers nothing is copied: the session reads the request's arrays and its results are the response's arrays.
    """

    def __init__(
        self,
        session: Any,
        signature: Signature,
        outputs: Sequence[str],
        new_options: Callable[[], Any],
        *,
        batching: bool = False,
        loops: bool = False,
    ) -> None:
        """``new_options`` makes ``onnxruntime.RunOptions``; ``loops``: see :class:`OpenSession`."""
        self._session = session
        self._names = list(outputs)
        self._types = {info.name: info.data_type for info in signature.outputs}
        self._text_inputs = frozenset(
            info.name for info in (*signature.inputs, *signature.optional) if info.data_type is DataType.BYTES
        )
        self._text_outputs = any(self._types[name] is DataType.BYTES for name in self._names)
        self._new_options = new_options
        self._run_options = new_options()
        self._ended: RepoAgentError | None = None
        # The public method looks whether an input is missing and then calls this one; the rest is for other providers.
        plain = session.get_providers() == ["CPUExecutionProvider"]
        self._required = len(signature.inputs)
        self._run: Callable[..., list[Array]] | None = session._sess.run if plain else session.run
        # In parallel mode the thread that calls waits while others compute.
        sequential = session.get_session_options().execution_mode == onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        self.capabilities = (
            Capability.PLACES_OUTPUTS
            | Capability.ENDS_RUNS
            | (Capability.MAY_RUN_FOREVER if loops else Capability.NONE)
            | (Capability.ONLY_COMPUTES if plain and sequential else Capability.NONE)
        )
        self._placer = Placer(signature, batching=batching)
        has_bfloat16 = any(
            info.data_type is DataType.BF16 for info in (*signature.inputs, *signature.optional, *signature.outputs)
        )
        self._compute: Callable[[Mapping[str, Tensor], list[str]], Sequence[Array]] | None = (
            self._compute_values if has_bfloat16 else self._compute_arrays
        )

    def run(self, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
        compute = self._compute
        if compute is None:
            raise UnavailableError("the model has been unloaded")
        names = list(outputs) if outputs else self._names
        try:
            arrays = compute(inputs, names)
        except Exception as error:
            raise self._ended or translate(error) from error
        types = self._types
        return {name: Tensor(types[name], array) for name, array in zip(names, arrays, strict=True)}

    def run_into(
        self, inputs: Mapping[str, Tensor], outputs: Sequence[str], places: Mapping[str, OutputPlace]
    ) -> dict[str, Tensor]:
        session = self._session
        names = list(outputs) if outputs else self._names
        targets = self._placer.targets(inputs, names, places)
        if not targets or session is None:
            return self.run(inputs, outputs)
        try:
            arrays = self._placer.run(session, inputs, names, targets, self._run_options)
        except Exception:
            if self._ended is not None:
                raise self._ended from None
            # An output may have another shape than the model declares. If it is something else, it is raised again.
            return self.run(inputs, outputs)
        return {name: Tensor(self._types[name], array) for name, array in zip(names, arrays, strict=True)}

    def _compute_arrays(self, inputs: Mapping[str, Tensor], names: list[str]) -> Sequence[Array]:
        run = self._run if len(inputs) >= self._required else self._session and self._session.run
        if run is None:
            raise UnavailableError("the model has been unloaded")
        feeds = {name: tensor.array for name, tensor in inputs.items()}
        for name in self._text_inputs & feeds.keys() if self._text_inputs else ():
            feeds[name] = bytes_to_text(name, feeds[name])
        arrays = run(names, feeds, self._run_options)
        if self._text_outputs:
            arrays = [bytes_from_text(array) if array.dtype == object else array for array in arrays]
        return arrays

    def _compute_values(self, inputs: Mapping[str, Tensor], names: list[str]) -> Sequence[Array]:
        """The slower road for models with BF16 tensors, which NumPy does not know."""
        feeds = {name: self._to_value(name, tensor) for name, tensor in inputs.items()}
        # The public run_with_ort_values iterates the result vector, which costs ten times as much as indexing it.
        values = self._session._sess.run_with_ort_values(feeds, names, self._run_options)
        return [self._from_value(name, values[index]) for index, name in enumerate(names)]

    @staticmethod
    def _to_value(name: str, tensor: Tensor) -> Any:
        if tensor.data_type is DataType.BF16:
            return bfloat16_to_value(tensor.array)
        array = bytes_to_text(name, tensor.array) if tensor.data_type is DataType.BYTES else tensor.array
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)._ortvalue

    def _from_value(self, name: str, value: Any) -> Array:
        if self._types[name] is DataType.BF16:
            return bfloat16_from_value(value)
        array: Array = value.numpy()
        return bytes_from_text(array) if self._types[name] is DataType.BYTES else array

    def end_run(self, error: RepoAgentError) -> None:
        """See :class:`~repoagent.serving.instances.backend.BatchRunner`: ONNX Runtime looks before every node."""
        self._ended = error
        self._run_options.terminate = True

    def renew(self) -> None:
        self._ended = None
        self._run_options = self._new_options()

    def close(self) -> None:
        """Let go of the session, and end a run that is still going on."""
        self._compute = self._run = None
        self._session = None
        self.end_run(UnavailableError("the model has been unloaded"))


class TurnTakingRunner(OnnxRuntimeRunner):
    """An instance whose runs take turns on the cores with other models of the process, so each may wait for others."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """See :class:`OnnxRuntimeRunner`."""
        super().__init__(*arguments, **options)
        # The thread that calls must not be an event loop's, and its clock states nothing of the time that a run takes.
        self.capabilities = self.capabilities & ~Capability.ONLY_COMPUTES | Capability.MAY_RUN_FOREVER
        self._seat = turns.PROCESS.seat()

    def run(self, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
        with self._seat:
            return super().run(inputs, outputs)

    def run_into(
        self, inputs: Mapping[str, Tensor], outputs: Sequence[str], places: Mapping[str, OutputPlace]
    ) -> dict[str, Tensor]:
        with self._seat:
            return super().run_into(inputs, outputs, places)
