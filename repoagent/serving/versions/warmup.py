"""Warm-up: requests that a model answers before it counts as ready, so that the first client does not wait."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from repoagent.config import ModelConfig
from repoagent.errors import CancelledError, InvalidArgumentError, RepoAgentError, UnavailableError
from repoagent.limits import Limits
from repoagent.serving.instances.instance import Instance
from repoagent.serving.instances.left_behind import loading_until, unless_cancelled
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import NUMPY_TYPES, Array, DataType, Tensor, blank, read_tensor
from repoagent.serving.scheduling.sequence_controls import SequenceControls, SequenceStates
from repoagent.storage.files.files import ModelFiles

_LOOK_SECONDS: Final = 0.1
_GRACE_SECONDS: Final = 2.0
"""How long a request that was cancelled may take to end, before its thread is left behind."""
_DIRECTORY: Final = "warmup"


def warm_up(
    config: ModelConfig,
    files: ModelFiles,
    instances: list[Instance],
    states: SequenceStates | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    *,
    limit_seconds: int = 0,
) -> None:
    """Run every ``model_warmup`` sample of ``config`` on every instance.

    What a sample of a model with sequences does not have of control inputs and ``states`` is that of a sequence of one
    request.

    Raises:
        RepoAgentError: a sample is wrong, or the model failed on it; the message names it.
        UnavailableError: all samples together took longer than ``limit_seconds`` (0: any time is fine).
        CancelledError: ``cancelled`` became true. As with the time limit, a request that runs is cancelled as well, and
            its thread is left behind if it does not end by that.
    """
    if not config.model_warmup:
        return
    with _Supervision(config.name, cancelled, limit_seconds) as supervision:
        for sample in config.model_warmup:
            for request in _requests(config, files, sample, states):
                for instance in instances:
                    supervision.rehearse(instance, request, sample.name)


class _Supervision:
    """A thread that cancels the request that runs, when the load has been cancelled or the time is over."""

    def __init__(self, model: str, cancelled: Callable[[], bool], limit_seconds: int) -> None:
        self._model = model
        self._cancelled = cancelled
        self._limit = limit_seconds
        self._deadline = time.monotonic() + limit_seconds if limit_seconds else float("inf")
        self._request: InferRequest | None = None
        self._over_since: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="repoagent-warmup-watch", daemon=True)

    def __enter__(self) -> "_Supervision":
        try:
            self._thread.start()
        except RuntimeError as error:
            raise UnavailableError(f"no thread can be started to watch the warm-up: {error}") from error
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            request = self._request
            if request is not None and self._is_over():
                request.cancel()

    def _is_over(self) -> bool:
        return self._cancelled() or time.monotonic() > self._deadline

    def _has_no_patience(self) -> bool:
        if not self._is_over():
            return False
        if self._over_since is None:
            self._over_since = time.monotonic()
        return time.monotonic() > self._over_since + _GRACE_SECONDS

    def rehearse(self, instance: Instance, request: InferRequest, sample: str) -> None:
        """Execute ``request``. Raises as :func:`warm_up` does."""
        self._check(sample)
        self._request = request
        try:
            with loading_until(self._model, self._has_no_patience):
                unless_cancelled(partial(instance.rehearse, request))
        except RepoAgentError as error:
            self._check(sample)
            raise type(error)(f"failed to run warmup sample '{sample}' of model '{self._model}': {error}") from error
        finally:
            self._request = None
        self._check(sample)

    def _check(self, sample: str) -> None:
        if self._cancelled():
            raise CancelledError(f"the load of model '{self._model}' was cancelled")
        if time.monotonic() > self._deadline:
            raise UnavailableError(
                f"the warm-up of model '{self._model}' was ended at sample '{sample}': it took longer than "
                f"{self._limit} seconds ({Limits.flag('warmup_seconds')})"
            )


def _requests(
    config: ModelConfig, files: ModelFiles, sample: Any, states: SequenceStates | None
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
    config: ModelConfig, request: InferRequest, states: SequenceStates | None, batch: tuple[int, ...]
) -> dict[str, Tensor]:
    """What the scheduler adds to a request that is a whole sequence, in every row of the batch."""
    added = SequenceControls(config).of(request) | (states.inputs({}, request) if states is not None else {})
    rows = batch[0] if batch else 1
    return {
        name: Tensor(it.data_type, np.repeat(it.array, rows, axis=0) if batch else it.array)
        for name, it in added.items()
    }


def _batch(config: ModelConfig, sample: Any) -> tuple[int, ...]:
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
