"""Running batches on a session."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnxruntime

from repoagent.errors import RepoAgentError, UnavailableError
from repoagent.serving.backends.onnxruntime.conversion import (
    bfloat16_from_value,
    bfloat16_to_value,
    bytes_from_text,
    bytes_to_text,
)
from repoagent.serving.backends.onnxruntime.error_translation import translate
from repoagent.serving.backends.onnxruntime.output_placement import Placer
from repoagent.serving.backends.signatures import Signature
from repoagent.serving.instances.backend import BatchRunner, Capability
from repoagent.serving.requests.request import OutputPlace
from repoagent.serving.requests.tensor import Array, DataType, Tensor

__all__ = ["OnnxRuntimeRunner"]


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
        """``new_options`` makes ``onnxruntime.RunOptions``; ``loops``: see ``may_loop``."""
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
        """See :class:`~repoagent.serving.instances.backend.BatchRunner`."""
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
        """See :class:`~repoagent.serving.instances.backend.BatchRunner`."""
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
        """See :class:`~repoagent.serving.instances.backend.BatchRunner`."""
        self._ended = None
        self._run_options = self._new_options()

    def close(self) -> None:
        """Let go of the session, and end a run that is still going on."""
        self._compute = self._run = None
        self._session = None
        self.end_run(UnavailableError("the model has been unloaded"))
