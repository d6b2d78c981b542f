"""``backend: "identity"``: every OUTPUT is its INPUT, after a delay if the model asks for one."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from repoagent.errors import InvalidArgumentError, UnsupportedError
from repoagent.serving.instances.backend import BackendInstance, InstanceSpec
from repoagent.serving.instances.instance import batch_size
from repoagent.serving.requests.request import Asked, InferRequest, ParameterValue
from repoagent.serving.requests.tensor import NUMPY_TYPES, DataType, Tensor
from repoagent.storage.files.files import ModelFiles
from repoagent_example_backends.common import (
    ExampleBackend,
    ExampleModel,
    number,
    pause,
    refuse_unless,
    respond,
    shape_text,
    type_name,
)

if TYPE_CHECKING:
    from repoagent.config import ModelConfig
    from repoagent.config.model_config_pb2 import ModelInput, ModelOutput

__all__ = ["IdentityBackend"]

_PARAMETERS: Final[Mapping[str, ParameterValue]] = {
    "param0": "an example string parameter",
    "param1": 42,
    "param2": False,
}
"""What each response says; Triton's does so to show what parameters of a response are."""


class IdentityBackend(ExampleBackend):
    """As many outputs as inputs, ``OUTPUT<index>`` of the type and shape of ``INPUT<index>``.

    Model parameters: ``execute_delay_ms`` per batch, times the number of the instance times
    ``instance_wise_delay_multiplier`` (at least once); ``creation_delay_sec`` when an instance is made.
    """

    name: ClassVar[str] = "identity"

    def load(self, config: "ModelConfig", files: ModelFiles, version: int) -> ExampleModel:
        """Raises InvalidArgumentError for a configuration that is not of that kind."""
        _check(config)
        return ExampleModel(lambda spec: _Instance(config, version, spec))


class _Instance(BackendInstance):
    def __init__(self, config: "ModelConfig", version: int, spec: InstanceSpec) -> None:
        pause(number(config, "creation_delay_sec"), [InferRequest(Asked(config.name, {}))])
        position = int(spec.name.rpartition("_")[2])
        factor = max(1, number(config, "instance_wise_delay_multiplier") * position)
        self._delay = number(config, "execute_delay_ms") / 1000 * factor
        self._version = str(version)
        self._outputs = [output.name for output in config.output]
        self._batching = config.max_batch_size > 0
        self._optional = {item.name: item for item in config.input if item.optional}

    def execute(self, requests: Sequence[InferRequest]) -> None:
        pause(self._delay, requests)
        for request in requests:
            self._answer(request)

    def close(self) -> None:
        """Nothing is held."""

    def _answer(self, request: InferRequest) -> None:
        inputs = request.inputs
        outputs: dict[str, Tensor] = {}
        for name in request.requested_outputs or self._outputs:
            source = f"INPUT{name.removeprefix('OUTPUT')}"
            if source in self._optional and source not in inputs:
                outputs[name] = self._zeros(self._optional[source], request)
                continue
            if source not in inputs:
                error = UnsupportedError(f"failed to get input '{source}'")
                respond(request, self._version, {}, error=error)
                return
            outputs[name] = inputs[source]
        respond(request, self._version, outputs, _PARAMETERS)

    def _zeros(self, item: "ModelInput", request: InferRequest) -> Tensor:
        """In the place of an input that the client left out; a variable dimension is 1."""
        batch = (batch_size(request),) if self._batching else ()
        kind = DataType(item.data_type)
        array = np.zeros((*batch, *(max(1, dim) for dim in _shape(item))), NUMPY_TYPES[kind])
        if kind is DataType.BYTES:
            array.fill(b"")
        return Tensor(kind, array)


def _check(config: "ModelConfig") -> None:
    refuse_unless(len(config.input) == len(config.output), "model configuration must have equal input/output pairs")
    inputs = {_index(tensor, "input"): tensor for tensor in config.input}
    for output in config.output:
        source = inputs.get(_index(output, "output"))
        if source is None:
            raise InvalidArgumentError("expected input and output indices to match")
        types = type_name(source), type_name(output)
        refuse_unless(
            types[0] == types[1], f"expected input and output datatype to match, got {types[0]} and {types[1]}"
        )
        shapes = shape_text(_shape(source)), shape_text(_shape(output))
        refuse_unless(
            shapes[0] == shapes[1], f"expected input and output shape to match, got {shapes[0]} and {shapes[1]}"
        )


def _index(tensor: "ModelInput | ModelOutput", kind: str) -> str:
    prefix = kind.upper()
    refuse_unless(
        tensor.name.startswith(prefix),
        f"expected {kind} name to follow {prefix}<index> pattern, got '{tensor.name}'",
    )
    return tensor.name.removeprefix(prefix)


def _shape(tensor: "ModelInput | ModelOutput") -> Sequence[int]:
    return tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
