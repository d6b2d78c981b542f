"""Warm-up: requests that a model answers before it counts as ready, so that the first client does not wait."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from repoagent.errors import CancelledError, InvalidArgumentError, RepoAgentError
from repoagent.serving.instances.base import Instance
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import NUMPY_TYPES, Array, DataType, Tensor
from repoagent.serving.requests.tensor_files import blank, read_tensor
from repoagent.serving.scheduling.sequence_controls import SequenceControls
from repoagent.serving.scheduling.sequence_states import SequenceStates
from repoagent.storage.files.files import ModelFiles

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["warm_up"]

_DIRECTORY: Final = "warmup"


def warm_up(
    config: "ModelConfig",
    files: ModelFiles,
    instances: list[Instance],
    states: SequenceStates | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> None:
    """Run every ``model_warmup`` sample of ``config`` on every instance.

    What a sample of a model with sequences does not have of control inputs and ``states`` is that of a sequence of one
    request.

    Raises:
        RepoAgentError: a sample is wrong, or the model failed on it; the message names it.
        CancelledError: ``cancelled`` became true between two requests.
    """
    for sample in config.model_warmup:
        for request in _requests(config, files, sample, states):
            for instance in instances:
                if cancelled():
                    raise CancelledError(f"the load of model '{config.name}' was cancelled")
                _rehearse(instance, request, config.name, sample.name)


def _rehearse(instance: Instance, request: InferRequest, model: str, sample: str) -> None:
    try:
        instance.rehearse(request)
    except RepoAgentError as error:
        raise type(error)(f"failed to run warmup sample '{sample}' of model '{model}': {error}") from error


def _requests(
    config: "ModelConfig", files: ModelFiles, sample: Any, states: SequenceStates | None
) -> Iterator[InferRequest]:
    inputs = {
        name: _tensor(files, f"sample '{sample.name}', input '{name}'", spec, _batch(config, sample))
        for name, spec in sample.inputs.items()
    }
    asked = Asked(config.name, inputs, correlation_id=1, sequence_start=True, sequence_end=True)
    if config.HasField("sequence_batching"):
        added = _of_sequence(config, InferRequest(asked), states, _batch(config, sample))
        asked = replace(asked, inputs=added | inputs)
    for _ in range(max(1, sample.count)):
        yield InferRequest(asked)


def _of_sequence(
    config: "ModelConfig", request: InferRequest, states: SequenceStates | None, batch: tuple[int, ...]
) -> dict[str, Tensor]:
    """What the scheduler adds to a request that is a whole sequence, in every row of the batch."""
    added = SequenceControls(config).of(request) | (states.inputs({}, request) if states is not None else {})
    rows = batch[0] if batch else 1
    return {
        name: Tensor(it.data_type, np.repeat(it.array, rows, axis=0) if batch else it.array)
        for name, it in added.items()
    }


def _batch(config: "ModelConfig", sample: Any) -> tuple[int, ...]:
    return (max(1, sample.batch_size),) if config.max_batch_size else ()


def _tensor(files: ModelFiles, place: str, spec: Any, batch: tuple[int, ...]) -> Tensor:
    data_type = DataType(spec.data_type)
    dims = tuple(spec.dims)
    if data_type is DataType.INVALID or any(dim < 1 for dim in dims):
        raise InvalidArgumentError(f"warmup {place}: a data type and positive dims are required, got dims {list(dims)}")
    source = spec.WhichOneof("input_data_type")
    if source == "input_data_file":
        one = read_tensor(files, f"{_DIRECTORY}/{spec.input_data_file}", f"warmup {place}", data_type, dims)
    elif source == "random_data" and data_type is not DataType.BYTES:
        one = _random(data_type, dims)
    else:
        one = blank(data_type, dims)
    return Tensor(data_type, np.broadcast_to(one, (*batch, *dims)).copy() if batch else one)


def _random(data_type: DataType, dims: tuple[int, ...]) -> Array:
    # Bits as they come would make NaNs and out-of-range indexes; small values exercise the same code.
    values = np.random.default_rng(0).integers(0, 2, size=dims)
    return values.astype(NUMPY_TYPES[data_type])
