"""Warm-up: requests that a model answers before it counts as ready, so that the first client does not wait."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from repoagent.errors import InvalidArgumentError, RepoAgentError
from repoagent.serving.instances import Instance
from repoagent.serving.request import InferRequest
from repoagent.serving.tensor_data import blank, read_tensor
from repoagent.serving.types import NUMPY_TYPES, Array, DataType, Tensor
from repoagent.storage.files import ModelFiles

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["warm_up"]

_DIRECTORY: Final = "warmup"


def warm_up(config: "ModelConfig", files: ModelFiles, instances: list[Instance]) -> None:
    """Run every ``model_warmup`` sample of ``config`` on every instance.

    Raises:
        RepoAgentError: a sample is wrong, or the model failed on it; the message names it.
    """
    for sample in config.model_warmup:
        for request in _requests(config, files, sample):
            for instance in instances:
                _rehearse(instance, request, config.name, sample.name)


def _rehearse(instance: Instance, request: InferRequest, model: str, sample: str) -> None:
    try:
        instance.rehearse(request)
    except RepoAgentError as error:
        raise type(error)(f"failed to run warmup sample '{sample}' of model '{model}': {error}") from error


def _requests(config: "ModelConfig", files: ModelFiles, sample: Any) -> Iterator[InferRequest]:
    inputs = {
        name: _tensor(files, f"sample '{sample.name}', input '{name}'", spec, _batch(config, sample))
        for name, spec in sample.inputs.items()
    }
    for _ in range(max(1, sample.count)):
        yield InferRequest(config.name, dict(inputs), sequence_start=True, sequence_end=True, correlation_id=1)


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
