"""``backend: "sequence"`` and ``backend: "dyna_sequence"``: a sum over the requests of a sequence."""

import re
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from repoagent.errors import UnsupportedError
from repoagent.serving.instances.backend import BackendInstance
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.requests.tensor import Tensor
from repoagent.storage.files.files import ModelFiles
from repoagent_example_backends.common import (
    ExampleBackend,
    ExampleModel,
    number,
    pause,
    refuse_unless,
    respond,
    type_name,
)

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["DynaSequenceBackend", "SequenceBackend"]

_NUMBER: Final = re.compile(rb"\s*[+-]?\d+")
_Key = Callable[[InferRequest, int], Hashable]


class SequenceBackend(ExampleBackend):
    """Input ``INPUT``, output ``OUTPUT``: both INT32 vectors of one length; control inputs START and READY.

    One sum (INT32, wrapping) per slot of the direct strategy: a request with START set begins it again with the sum of
    INPUT, others add to it, and every element of OUTPUT is the sum so far. Model parameter: ``execute_delay_ms``.
    """

    name: ClassVar[str] = "sequence"

    def load(self, config: "ModelConfig", files: ModelFiles, version: int) -> ExampleModel:
        """Raises InvalidArgumentError for a configuration that is not of that kind."""
        _check(config, {"START", "READY"}, "'START' and 'READY' must be configured as the control inputs")
        return ExampleModel(lambda _: _Instance(config, str(version), lambda _, slot: slot))


class DynaSequenceBackend(ExampleBackend):
    """The same with control inputs END and CORRID besides, and one sum per correlation ID (the oldest strategy).

    A request with END set adds the ID to the sum: its lower 32 bits, of a text the number that it begins with, if any.
    """

    name: ClassVar[str] = "dyna_sequence"

    def load(self, config: "ModelConfig", files: ModelFiles, version: int) -> ExampleModel:
        """Raises InvalidArgumentError for a configuration that is not of that kind."""
        controls = "'START', 'END, 'READY' and 'CORRID' must be configured as the control inputs"
        _check(config, {"START", "END", "READY", "CORRID"}, controls)
        kinds = [item.control[0] for item in config.sequence_batching.control_input if item.name == "CORRID"]
        refuse_unless(
            all(type_name(kind) in ("TYPE_UINT64", "TYPE_STRING") for kind in kinds),
            "model CORRID control input must have TYPE_UINT64 or TYPE_STRING data-type",
        )
        return ExampleModel(lambda _: _Instance(config, str(version), lambda request, _: _control(request, "CORRID")))


class _Instance(BackendInstance):
    def __init__(self, config: "ModelConfig", version: str, key: _Key) -> None:
        self._version = version
        self._key = key
        self._delay = number(config, "execute_delay_ms") / 1000
        self._batching = config.max_batch_size > 0
        self._sums: dict[Hashable, int] = {}

    def execute(self, requests: Sequence[InferRequest]) -> None:
        pause(self._delay, requests)
        for slot, request in enumerate(requests):
            if _control(request, "READY"):
                self._step(request, self._key(request, slot))

    def close(self) -> None:
        self._sums.clear()

    def _step(self, request: InferRequest, key: Hashable) -> None:
        values = request.inputs["INPUT"]
        if self._batching and values.array.shape[0] != 1:
            error = UnsupportedError("unable to execute more than one timestep at a time")
            respond(request, self._version, {}, error=error)
            return
        before = 0 if _control(request, "START") else self._sums.get(key, 0)
        total = before + int(values.array.sum(dtype=np.int64))
        if "END" in request.inputs and _control(request, "END"):
            total += _added(key)
            self._sums.pop(key, None)
        else:
            self._sums[key] = total & 0xFFFFFFFF
        wrapped = np.array(total & 0xFFFFFFFF, np.uint32).view(np.int32)
        output = np.full_like(values.array, wrapped, dtype=np.int32)
        respond(request, self._version, {"OUTPUT": Tensor.of(output)})


def _control(request: InferRequest, name: str) -> Hashable:
    value: Hashable = request.inputs[name].array.ravel()[0]
    return value


def _added(correlation_id: Hashable) -> int:
    if not isinstance(correlation_id, bytes):
        return int(correlation_id)  # type: ignore[call-overload, no-any-return]  # a number of NumPy
    match = _NUMBER.match(correlation_id)
    return int(match[0]) if match else 0


def _check(config: "ModelConfig", controls: set[str], message: str) -> None:
    given = [item.name for item in config.sequence_batching.control_input]
    refuse_unless(len(given) == len(controls) and set(given) == controls, message)
    vector = "with vector shape, any length"
    refuse_unless(len(config.input) == 1, f"model must have input 'INPUT' {vector}")
    refuse_unless(len(config.input[0].dims) == 1, f"model must have one input 'INPUT' {vector}")
    refuse_unless(len(config.output) == 1, f"model must have one output 'OUTPUT' {vector}")
    source, target = config.input[0], config.output[0]
    refuse_unless(type_name(source) == "TYPE_INT32", "model input must have TYPE_INT32 data-type")
    refuse_unless(source.name == "INPUT", "model input must be named 'INPUT'")
    refuse_unless(source.dims == target.dims, "model must have output 'OUTPUT' with shape matching 'INPUT'")
    refuse_unless(type_name(target) == "TYPE_INT32", "model output must have TYPE_INT32 data-type")
    refuse_unless(target.name == "OUTPUT", "model output must be named 'OUTPUT'")
