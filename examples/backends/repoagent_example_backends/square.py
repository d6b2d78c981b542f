"""``backend: "square"``: n responses of n for an IN of n (decoupled)."""

import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from repoagent.errors import InvalidArgumentError, RepoAgentError, UnknownError
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
    number,
    pause,
    refuse_unless,
    respond,
    shape_text,
)

if TYPE_CHECKING:
    from repoagent.config import ModelConfig
    from repoagent.config.model_config_pb2 import ModelInput, ModelOutput

__all__ = ["SquareBackend"]

logger: Final = logging.getLogger(__name__)


class SquareBackend(ExampleBackend):
    """One input ``IN`` and one output ``OUT``, both INT32 [1]; a model that batches takes batches of one.

    Model parameters: ``CUSTOM_INFER_DELAY_NS`` before and ``CUSTOM_OUTPUT_DELAY_NS`` within each response;
    of the n, the last ``CUSTOM_EMPTY_COUNT`` are left out and the ``CUSTOM_FAIL_COUNT`` before them are errors.
    """

    name: ClassVar[str] = "square"

    def load(self, config: "ModelConfig", files: ModelFiles, version: int) -> ExampleModel:
        """Raises InvalidArgumentError for a configuration that is not of that kind."""
        _check(config)
        return ExampleModel(lambda spec: _Instance(config, str(version), Workers(f"{spec.name}-square")))


class _Instance(BackendInstance):
    def __init__(self, config: "ModelConfig", version: str, workers: Workers) -> None:
        self._version = version
        self._workers = workers
        self._infer_delay = _parameter(config, "CUSTOM_INFER_DELAY_NS") / 1e9
        self._output_delay = _parameter(config, "CUSTOM_OUTPUT_DELAY_NS") / 1e9
        self._fails = _parameter(config, "CUSTOM_FAIL_COUNT")
        self._empties = _parameter(config, "CUSTOM_EMPTY_COUNT")

    def execute(self, requests: Sequence[InferRequest]) -> None:
        for request in requests:
            array = request.inputs["IN"].array
            if array.size != 1:
                answer_error(request, InvalidArgumentError("unexpected shape for IN input"), self._version)
                continue
            self._workers.start(partial(self._answer, request, int(array.ravel()[0]), array.ndim))

    def close(self) -> None:
        self._workers.close()

    def _answer(self, request: InferRequest, count: int, dimensions: int) -> None:
        outputs = {"OUT": Tensor.of(np.full((1,) * dimensions, count, np.int32))}
        for index in range(count):
            pause(self._infer_delay, [request])
            if request.cancelled:
                respond(request, self._version, {})
                return
            left = count - index
            if left > self._empties:
                computed = time.monotonic_ns()
                pause(self._output_delay, [request])
                fails = left <= self._empties + self._fails
                error: RepoAgentError | None = UnknownError("simulated failure") if fails else None
                respond(request, self._version, outputs, error=error, final=False, output_start_ns=computed)
        request.send(None, True)


def _parameter(config: "ModelConfig", key: str) -> int:
    """As Triton does, what is no number is said in the log and left at 0."""
    try:
        return number(config, key)
    except InvalidArgumentError as error:
        logger.info("model '%s': %s", config.name, error)
        return 0


def _check(config: "ModelConfig") -> None:
    expect_tensors(config.input, "input", ("IN",))
    expect_tensors(config.output, "output", ("OUT",))
    tensors: list[ModelInput | ModelOutput] = [*config.input, *config.output]
    for tensor in tensors:
        refuse_unless(
            list(tensor.dims) == [1], f"expected {tensor.name} shape to be [1], got {shape_text(tensor.dims)}"
        )
        expect_type(tensor, "INT32")
