"""Requests, responses and errors as bodies of messages."""

from typing import Any, Final

import numpy as np

from repoagent.errors import ErrorCode, InternalError, InvalidArgumentError, RepoAgentError
from repoagent.serving.backends.python.model.context import TritonError, core_error
from repoagent.serving.backends.python.model.tensors import serialize_byte_tensor
from repoagent.serving.backends.python.process.memory import Memory, ProtocolError
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse, ParameterValue
from repoagent.serving.requests.tensor import NUMPY_TYPES, Array, DataType, Tensor, parse_bytes_tensor

RESCHEDULED: Final = 2
"""In the place of True for the end of a request that is to be executed again."""

_ALIGNMENT: Final = 64
_PLAIN: Final = (bool, int, float, str)
_PLAIN_TYPES: Final = frozenset(_PLAIN)
_SMALL_BYTES: Final = 16 << 10
"""Up to here two copies take less time than having NumPy make one."""
_CODES: Final = {kind: kind.value for kind in DataType}
_KINDS: Final = {kind.value: (kind, dtype) for kind, dtype in NUMPY_TYPES.items()}


class Packer:
    """Collects tensors, and writes them one behind the other."""

    __slots__ = ("_parts", "size")

    def __init__(self) -> None:
        self._parts: list[tuple[int, np.dtype[Any], Array]] = []
        self.size = 0
        """How many bytes are needed for all of them."""

    def add(self, name: str, tensor: Tensor) -> list[Any]:
        """What a message states about ``tensor``."""
        array, dtype = tensor.array, NUMPY_TYPES[tensor.data_type]
        shape = array.shape
        if tensor.data_type is DataType.BYTES:
            array = np.frombuffer(serialize_byte_tensor(array) or b"", np.uint8)
            dtype = array.dtype
        length = array.size * dtype.itemsize
        offset = -(-self.size // _ALIGNMENT) * _ALIGNMENT if length else 0
        if length:
            self._parts.append((offset, dtype, array))
            self.size = offset + length
        return [name, _CODES[tensor.data_type], shape, offset, length]

    def write(self, memory: Memory, start: int) -> None:
        """Copy everything to ``memory``, from byte ``start`` on."""
        for offset, dtype, array in self._parts:
            at = start + offset
            if array.nbytes <= _SMALL_BYTES and array.dtype == dtype and not isinstance(memory, np.ndarray):
                memory[at : at + array.nbytes] = array.tobytes()
            else:
                np.copyto(np.ndarray(array.shape, dtype, memory, at), array)


def tensors_of(entries: list[Any], memory: Memory) -> dict[str, Tensor]:
    """Tensors over ``memory``; those of BYTES are copied. Raises ``ProtocolError`` if they do not lie there."""
    try:
        found = {}
        for name, kind, shape, at, length in entries:
            found[name] = _tensor(*_KINDS[kind], tuple(shape), at, length, memory)
        "".join(found)
    except (TypeError, ValueError, KeyError, OverflowError, InvalidArgumentError) as error:
        raise ProtocolError(f"a tensor cannot be read: {error}") from error
    return found


def _tensor(
    kind: DataType, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, length: int, memory: Memory
) -> Tensor:
    # NumPy believes negative numbers.
    if offset < 0 or length < 0 or offset + length > len(memory) or (shape and min(shape) < 0):
        raise ValueError(f"shape {shape} at {offset}")
    if kind is DataType.BYTES:
        return Tensor(kind, parse_bytes_tensor(bytes(memory[offset : offset + length])).reshape(shape))
    if 0 in shape:
        return Tensor(kind, np.empty(shape, dtype))
    return Tensor(kind, np.ndarray(shape, dtype, memory, offset))


def request_body(number: int, request: InferRequest, packer: Packer) -> list[Any]:
    """``request`` under a number that the answers will refer to."""
    asked = request.asked
    return [
        number,
        request.model_name,
        asked.model_version,
        asked.id,
        asked.correlation_id,
        asked.sequence_start | asked.sequence_end << 1 | request.placeholder << 2,
        asked.priority,
        asked.timeout_us,
        request.requested_outputs,
        _plain(dict(asked.parameters)),
        [packer.add(name, tensor) for name, tensor in request.inputs.items()],
    ]


def request_of(body: list[Any], memory: Memory) -> tuple[int, Asked, bool]:
    """Number and content of a :func:`request_body`, whether it is a placeholder; ``ProtocolError`` if it is none."""
    try:
        number, name, version, id_, correlation, flags, priority, timeout, outputs, parameters, tensors = body
        asked = Asked(
            name,
            tensors_of(tensors, memory),
            version,
            tuple(outputs),
            id=id_,
            parameters=_checked(parameters),
            correlation_id=correlation,
            sequence_start=bool(flags & 1),
            sequence_end=bool(flags & 2),
            priority=priority,
            timeout_us=timeout,
            volatile=True,  # The other process can write there.
        )
        return number, asked, bool(flags & 4)
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"a request cannot be read: {error}") from error


def response_body(number: int, response: InferResponse | None, final: int, packer: Packer) -> list[Any]:
    """A response to the request ``number``; None is an empty end. Raises ``InternalError`` if its parameters are none,
    or an output cannot be written."""
    if response is None:
        return [number, final, None]
    if response.error is not None:
        outputs: list[Any] = []
        return [number, final, [error_body(response.error), response.model_name, response.model_version, {}, outputs]]
    parameters = _plain(response.parameters)
    outputs = [_packed(name, tensor, packer) for name, tensor in response.outputs.items()]
    return [number, final, [None, response.model_name, response.model_version, parameters, outputs]]


def response_of(body: list[Any], memory: Memory) -> tuple[int, InferResponse | None, int]:
    """The number, the response and whether it is the last one; the response's id is for the caller to set. Raises
    ``ProtocolError`` for another body."""
    try:
        number, final, content = body
        if content is None:
            return number, None, final
        error, name, version, parameters, outputs = content
    except (TypeError, ValueError) as failure:
        raise ProtocolError(f"a response cannot be read: {failure}") from failure
    return (
        number,
        InferResponse(
            name,
            version,
            outputs=tensors_of(outputs, memory),
            parameters=_checked(parameters),
            error=None if error is None else error_of(error),
        ),
        final,
    )


def _packed(name: str, tensor: Tensor, packer: Packer) -> list[Any]:
    try:
        return packer.add(name, tensor)
    except (TypeError, ValueError, OverflowError) as error:  # Such as half a surrogate pair in a text.
        raise InternalError(f"output '{name}' cannot be written: {error}") from error


def error_body(error: RepoAgentError) -> list[Any]:
    return [int(error.code), error.message]


def error_of(body: list[Any]) -> RepoAgentError:
    """The error of an :func:`error_body`; raises ``ProtocolError`` for another body."""
    try:
        code, message = body
        if not isinstance(message, str):
            raise TypeError("its message is not text")
        return core_error(TritonError(message, ErrorCode(code)))
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"an error cannot be read: {error}") from error


def _plain(parameters: dict[str, ParameterValue]) -> dict[str, ParameterValue]:
    for name, value in parameters.items():
        if not isinstance(value, _PLAIN):
            raise InternalError(
                f"parameter '{name}' has a value of type {type(value).__name__}; it must be bool, int, float or str"
            )
    return parameters


def _checked(parameters: Any) -> dict[str, ParameterValue]:
    if not isinstance(parameters, dict) or not _PLAIN_TYPES.issuperset(map(type, parameters.values())):
        raise ProtocolError("parameters cannot be read")
    return parameters
