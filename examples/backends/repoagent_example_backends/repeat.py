"""``backend: "repeat"``: a response for each element of IN, each after its own delay (decoupled)."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from repoagent.errors import InvalidArgumentError
from repoagent.serving.instances.backend import BackendInstance
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.requests.senders import answer_error
from repoagent.serving.requests.tensor import Tensor
from repoagent.storage.files.files import ModelFiles
from repoagent_example_backends.common import (
    ExampleBackend,
    ExampleModel,
    Workers,
    expect_tensors,
    expect_type,
    pause,
    refuse_unless,
    respond,
    shape_text,
)

if TYPE_CHECKING:
    from repoagent.config import ModelConfig
    from repoagent.config.model_config_pb2 import ModelInput, ModelOutput

__all__ = ["RepeatBackend"]


class RepeatBackend(ExampleBackend):
    """Inputs ``IN`` (INT32), ``DELAY`` (UINT32, milliseconds, as many) and ``WAIT`` (UINT32 [1], milliseconds).

    Response i has ``OUT`` = IN[i] and ``IDX`` = i, and comes DELAY[i] after the one before; an empty IN has none. The
    next request is taken after WAIT, so that responses of several requests can mingle.
    """

    name: ClassVar[str] = "repeat"

    def load(self, config: "ModelConfig", files: ModelFiles, version: int) -> ExampleModel:
        """Raises InvalidArgumentError for a configuration that is not of that kind."""
        _check(config)
        return ExampleModel(lambda spec: _Instance(str(version), Workers(f"{spec.name}-repeat")))


class _Instance(BackendInstance):
    def __init__(self, version: str, workers: Workers) -> None:
        self._version = version
        self._workers = workers

    def execute(self, requests: Sequence[InferRequest]) -> None:
        waits = [0]
        for request in requests:
            values, delays = (request.inputs[name].array.ravel().tolist() for name in ("IN", "DELAY"))
            if len(values) != len(delays):
                error = InvalidArgumentError("expected IN and DELAY shape to match")
                answer_error(request, error, self._version)
                continue
            self._workers.start(partial(self._answer, request, values, delays))
            waits += request.inputs["WAIT"].array.ravel().tolist()
        pause(max(waits) / 1000, requests)

    def close(self) -> None:
        self._workers.close()

    def _answer(self, request: InferRequest, values: list[int], delays: list[int]) -> None:
        for index, (value, delay) in enumerate(zip(values, delays, strict=True)):
            pause(delay / 1000, [request])
            if request.cancelled:
                respond(request, self._version, {})
                return
            outputs = {
                "OUT": Tensor.of(np.array([value], np.int32)),
                "IDX": Tensor.of(np.array([index], np.uint32)),
            }
            respond(request, self._version, outputs, final=False)
        request.send(None, True)


def _check(config: "ModelConfig") -> None:
    refuse_unless(config.max_batch_size == 0, "repeat backend only supports models with max_batch_size == 0")
    expect_tensors(config.input, "input", ("IN", "DELAY", "WAIT"))
    expect_tensors(config.output, "output", ("OUT", "IDX"))
    values, delay, wait = config.input
    refuse_unless(len(values.dims) == 1, f"expected IN shape to have one dimension, got {shape_text(values.dims)}")
    refuse_unless(
        values.dims == delay.dims,
        f"expected IN and DELAY shape to match, got {shape_text(values.dims)} and {shape_text(delay.dims)}",
    )
    outputs: Sequence[ModelInput | ModelOutput] = config.output
    for tensor in (wait, *outputs):
        refuse_unless(
            list(tensor.dims) == [1], f"expected {tensor.name} shape to be [1], got {shape_text(tensor.dims)}"
        )
    types = ("INT32", "UINT32", "UINT32", "INT32", "UINT32")
    for tensor, kind in zip([*config.input, *outputs], types, strict=True):
        expect_type(tensor, kind)
