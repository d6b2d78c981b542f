"""The response cache of a server: answers that were given before, up to a number of bytes."""

import hashlib
import itertools
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NewType

from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.request import InferRequest, InferResponse, ParameterValue
from repoagent.serving.requests.tensor import Array, DataType, Tensor

_OVERHEAD: Final = 512
"""Bytes that an entry takes besides its tensors, roughly."""

Owner = NewType("Owner", int)
CacheKey = tuple[Owner, bytes]


def open_response_cache(settings: Mapping[str, Mapping[str, object]]) -> "ResponseCache | None":
    """The cache that ``cache_config`` asks for: ``{"local": {"size": BYTES}}``, or none. Raises
    ``InvalidArgumentError`` for another name, or a size that is missing or no positive number."""
    if not settings:
        return None
    if unknown := sorted(set(settings) - {"local"}):
        raise InvalidArgumentError(f"unable to find cache '{unknown[0]}'; available is 'local'")
    size = settings["local"].get("size")
    try:
        count = int(str(size))
    except ValueError:
        count = 0
    if count <= 0:
        raise InvalidArgumentError(f"cache 'local' must have a positive 'size' in bytes, not {size!r}")
    return ResponseCache(count)


def _data(tensor: Tensor) -> bytes:
    """The bytes of a tensor, so that two tensors of one type and shape have the same ones only if they are equal."""
    if tensor.data_type is not DataType.BYTES:
        return tensor.array.tobytes()
    elements = [element if isinstance(element, bytes) else str(element).encode() for element in tensor.array.flat]
    return b"".join(len(element).to_bytes(8, "little") + element for element in elements)


def request_digest(request: InferRequest) -> bytes:
    """A digest of everything of a request that an answer may depend on: inputs, requested outputs and parameters.

    It is one of 256 bits, so two requests with the same one can be taken to be equal.
    """
    names = sorted(request.inputs)
    tensors = [(name, int(request.inputs[name].data_type), tuple(request.inputs[name].shape)) for name in names]
    parameters = sorted((name, repr(value)) for name, value in request.asked.parameters.items())
    header = repr((tensors, sorted(set(request.requested_outputs)), parameters))
    digest = hashlib.blake2b(header.encode(), digest_size=32)
    for name in names:
        digest.update(_data(request.inputs[name]))
    return digest.digest()


def _size(array: Array) -> int:
    if array.dtype != object:
        return array.nbytes
    return array.nbytes + sum(len(element) for element in array.flat)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What is kept of a response. Its arrays are shared with nothing else."""

    outputs: Mapping[str, Tensor]
    parameters: Mapping[str, ParameterValue]
    size: int


def _copy(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: Tensor(tensor.data_type, tensor.array.copy()) for name, tensor in outputs.items()}


class ResponseCache:
    """At most ``capacity`` bytes of answers; those that were not used for longest go first. For all threads.

    Answers are copied on their way in and out: a response may be part of a larger batch, and belongs to its receiver.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._lock = threading.Lock()
        self._answers: OrderedDict[CacheKey, _Answer] = OrderedDict()
        self.used = 0
        """How many bytes the answers take at the moment."""
        self._owners = itertools.count(1)

    def __len__(self) -> int:
        return len(self._answers)

    def new_owner(self) -> Owner:
        """A number for one loaded version of a model: after a reload the same request has another key."""
        return Owner(next(self._owners))

    def get(self, key: CacheKey, request: InferRequest, version: str) -> InferResponse | None:
        with self._lock:
            answer = self._answers.get(key)
            if answer is None:
                return None
            self._answers.move_to_end(key)
        outputs, parameters = _copy(answer.outputs), dict(answer.parameters)
        return InferResponse(request.model_name, version, request.asked.id, outputs, parameters)

    def put(self, key: CacheKey, response: InferResponse) -> None:
        """Keep ``response``, unless it alone is larger than the cache."""
        size = _OVERHEAD + sum(_size(tensor.array) for tensor in response.outputs.values())
        if size > self.capacity:
            return
        answer = _Answer(_copy(response.outputs), dict(response.parameters), size)
        with self._lock:
            self._remove(key)
            while self.used + size > self.capacity:
                self._remove(next(iter(self._answers)))
            self._answers[key] = answer
            self.used += size

    def _remove(self, key: CacheKey) -> None:
        answer = self._answers.pop(key, None)
        if answer is not None:
            self.used -= answer.size

    def forget(self, owner: Owner) -> None:
        """Throw away all answers of a version that is gone."""
        with self._lock:
            for key in [key for key in self._answers if key[0] == owner]:
                self._remove(key)
