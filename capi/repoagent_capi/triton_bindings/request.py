"""Requests: inputs as addresses, one call per field."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from repoagent.config import ModelConfig
from repoagent.errors import AlreadyExistsError, InvalidArgumentError, UnsupportedError
from repoagent.server.enums import MemoryType, RequestFlag
from repoagent.server.memory import MemoryBuffer, view
from repoagent.server.tensor import Tensor, to_core
from repoagent.serving.requests.request import Asked, InferRequest, ParameterValue, ResponseSender
from repoagent.serving.requests.tensor import NUMPY_TYPES, DataType, ServerEnum
from repoagent.serving.requests.tensor import Tensor as CoreTensor
from repoagent_capi.triton_bindings.response import Delivery
from repoagent_capi.triton_bindings.values import BufferAttributes

if TYPE_CHECKING:
    from repoagent_capi.triton_bindings.server import Server


class RequestReleaseFlag(ServerEnum):
    """Bits that come with the release of a request."""

    ALL = 1


@dataclass(slots=True)
class _Input:
    data_type: DataType | None
    """None for a raw input: the model says what it is."""
    shape: tuple[int, ...] = ()
    pieces: list[tuple[int, int]] = field(default_factory=list)
    """Address and size of each piece of the tensor."""


class InferenceRequest:
    """A request to ``version`` of a model, -1 for the highest. It can be used again after its final response.

    The buffers of its inputs are the caller's and must stay until then.

    Raises:
        NotFoundError: there is no such model or version.
        UnavailableError: it is not ready.
    """

    def __init__(self, server: "Server", model_name: str, version: int) -> None:
        self._server = server
        self._served = server.core.find(InferRequest(Asked(model_name, {}, "" if version == -1 else str(version))))
        self._model_name = model_name
        self._version = version
        self._inputs: dict[str, _Input] = {}
        self._outputs: list[str] = []
        self._parameters: dict[str, ParameterValue] = {}
        self._correlation_id: int | str = 0
        self._priority = self._default_priority()
        self._running: InferRequest | None = None
        self._delivery = Delivery()
        self.id = ""
        self.flags = 0
        self.timeout_microseconds = 0

    # -- fields ---------------------------------------------------------------------------------------------------

    @property
    def correlation_id(self) -> int:
        """The sequence that the request belongs to, as a number; 0 is none.

        Raises:
            InvalidArgumentError: it was set as text.
        """
        if isinstance(self._correlation_id, str):
            raise InvalidArgumentError("given request's correlation id is not an unsigned int")
        return self._correlation_id

    @correlation_id.setter
    def correlation_id(self, value: int) -> None:
        self._correlation_id = value

    @property
    def correlation_id_string(self) -> str:
        """The same as text.

        Raises:
            InvalidArgumentError: it was set as a number, or not at all.
        """
        if isinstance(self._correlation_id, int):
            raise InvalidArgumentError("given request's correlation id is not a string")
        return self._correlation_id

    @correlation_id_string.setter
    def correlation_id_string(self, value: str) -> None:
        self._correlation_id = value

    @property
    def priority(self) -> int:
        """1 is the highest; what the model does not have becomes its default."""
        return self._priority

    @priority.setter
    def priority(self, value: int) -> None:
        known = 1 <= value <= self._served.config.dynamic_batching.priority_levels
        self._priority = value if known else self._default_priority()

    priority_uint64 = priority

    def _default_priority(self) -> int:
        level: int = self._served.config.dynamic_batching.default_priority_level
        return level

    def set_string_parameter(self, name: str, value: str) -> None:
        """Add a parameter."""
        self._add_parameter(name, value)

    def set_int_parameter(self, name: str, value: int) -> None:
        """Add a parameter."""
        self._add_parameter(name, value)

    def set_bool_parameter(self, name: str, value: bool) -> None:
        """Add a parameter."""
        self._add_parameter(name, value)

    def set_double_parameter(self, name: str, value: float) -> None:
        """Add a parameter."""
        self._add_parameter(name, float(value))

    def _add_parameter(self, name: str, value: ParameterValue) -> None:
        if name in self._parameters:
            raise AlreadyExistsError(f"request parameter '{name}' already exists")
        self._parameters[name] = value

    # -- inputs ---------------------------------------------------------------------------------------------------

    def add_input(self, name: str, data_type: DataType, shape: Sequence[int]) -> None:
        """Add an input without data.

        Raises:
            InvalidArgumentError: there is one of that name, or no tensor has that type.
        """
        if data_type not in NUMPY_TYPES:
            raise InvalidArgumentError(f"input '{name}' cannot be of type {data_type}")
        if name in self._inputs:
            raise InvalidArgumentError(f"input '{name}' already exists in request")
        self._inputs[name] = _Input(data_type, tuple(shape))

    def add_raw_input(self, name: str) -> None:
        """Add the only input of the model; type and shape are the model's.

        Whether the model has one input only, and of that name, shows when the request is sent.

        Raises:
            InvalidArgumentError: there are other inputs in the request.
        """
        if self._inputs:
            raise InvalidArgumentError(f"raw input '{name}' can't be added to a request that has other inputs")
        self._inputs[name] = _Input(None)

    def remove_input(self, name: str) -> None:
        """Remove an input.

        Raises:
            InvalidArgumentError: there is none of that name.
        """
        self._input(name)
        del self._inputs[name]

    def remove_all_inputs(self) -> None:
        """Remove every input."""
        self._inputs.clear()

    def append_input_data(
        self, name: str, address: int, byte_size: int, memory_type: MemoryType, memory_type_id: int
    ) -> None:
        """Add a piece of an input's data; it is not copied.

        Raises:
            InvalidArgumentError: there is no such input.
            UnsupportedError: the data lies on a GPU.
        """
        if memory_type is MemoryType.GPU:
            raise UnsupportedError(f"input '{name}' lies in the memory of GPU {memory_type_id}; move it to the CPU")
        self._input(name).pieces.append((address, byte_size))

    def append_input_data_with_host_policy(
        self,
        name: str,
        address: int,
        byte_size: int,
        memory_type: MemoryType,
        memory_type_id: int,
        host_policy_name: str,
    ) -> None:
        """The same for instances of one host policy; all of them see it here."""
        self.append_input_data(name, address, byte_size, memory_type, memory_type_id)

    def append_input_data_with_buffer_attributes(self, name: str, address: int, attributes: BufferAttributes) -> None:
        """The same, described by ``attributes``."""
        self.append_input_data(name, address, attributes.byte_size, attributes.memory_type, attributes.memory_type_id)

    def remove_all_input_data(self, name: str) -> None:
        """Remove the data of an input.

        Raises:
            InvalidArgumentError: there is none of that name.
        """
        self._input(name).pieces.clear()

    def _input(self, name: str) -> _Input:
        found = self._inputs.get(name)
        if found is None:
            raise InvalidArgumentError(f"input '{name}' does not exist in request")
        return found

    # -- outputs --------------------------------------------------------------------------------------------------

    def add_requested_output(self, name: str) -> None:
        """Ask for an output; all of them come if none is asked for."""
        if name not in self._outputs:
            self._outputs.append(name)

    def remove_requested_output(self, name: str) -> None:
        """Do not ask for an output any more."""
        if name in self._outputs:
            self._outputs.remove(name)

    def remove_all_requested_outputs(self) -> None:
        """Ask for all outputs again."""
        self._outputs.clear()

    # -- running --------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Give the request up if it is running."""
        if self._running is not None:
            self._running.cancel()

    def get_next_response(self, future: Any) -> None:
        """Resolve ``future`` with the next (response or None, flags), now or when it comes.

        Raises:
            AlreadyExistsError: an earlier future still waits.
        """
        self._delivery.next_to(future)

    def prepare(self, sender: ResponseSender) -> InferRequest:
        """The request in the form of the serving core; it counts as running from here on."""
        self._running = InferRequest(
            Asked(
                self._model_name,
                {name: self._tensor(name, it) for name, it in self._inputs.items()},
                "" if self._version == -1 else str(self._version),
                requested_outputs=tuple(self._outputs),
                id=self.id,
                parameters=dict(self._parameters),
                correlation_id=self._correlation_id,
                sequence_start=bool(self.flags & int(RequestFlag.SEQUENCE_START)),
                sequence_end=bool(self.flags & int(RequestFlag.SEQUENCE_END)),
                priority=self._priority,
                timeout_us=self.timeout_microseconds,
            ),
            sender,
        )
        return self._running

    @property
    def delivery(self) -> Delivery:
        """Where the responses go."""
        return self._delivery

    def _tensor(self, name: str, item: _Input) -> CoreTensor:
        address, size, owner = _joined(item.pieces)
        if item.data_type is None:
            content = view(address, (size,), np.dtype(np.uint8), owner)
            return raw_tensor(self._served.config, self._model_name, name, content)
        needed = NUMPY_TYPES[item.data_type].itemsize * math.prod(item.shape)
        if item.data_type is not DataType.BYTES and size != needed:
            raise InvalidArgumentError(
                f"input byte size mismatch for input '{name}' for model '{self._model_name}'. Expected {needed}, "
                f"got {size}"
            )
        return to_core(Tensor(item.data_type, item.shape, MemoryBuffer(address, MemoryType.CPU, 0, size, owner)))


def raw_tensor(config: ModelConfig, model: str, name: str, content: Any) -> CoreTensor:
    """A raw input, whose type and shape are those of the only input of the model; elements of BYTES are copied.

    Raises:
        InvalidArgumentError: the model has several inputs, or ``content`` does not fit.
    """
    if len(config.input) != 1:
        raise InvalidArgumentError(
            f"raw input '{name}' can only be used with a model that has one input; '{model}' has {len(config.input)}"
        )
    (described,) = config.input
    data_type = DataType(described.data_type)
    batch = [1] if config.max_batch_size > 0 else []
    if data_type is DataType.BYTES:
        array = np.empty([*batch, 1], dtype=object)
        array.reshape(-1)[0] = bytes(content)
        return CoreTensor(data_type, array)
    dtype = NUMPY_TYPES[data_type]
    try:
        numbers = np.frombuffer(content, dtype) if len(content) else np.empty(0, dtype)
        aligned = numbers if numbers.flags.aligned else numbers.copy()
        return CoreTensor(data_type, aligned.reshape([*batch, *described.dims]))
    except ValueError as error:
        raise InvalidArgumentError(
            f"the {len(content)} bytes of raw input '{described.name}' do not fit shape {list(described.dims)}: {error}"
        ) from error


def _joined(pieces: list[tuple[int, int]]) -> tuple[int, int, object]:
    """One address and size for all pieces, and what must be kept: nothing for a single piece, which is the caller's."""
    if len(pieces) == 1:
        return (*pieces[0], None)
    byte = np.dtype(np.uint8)
    whole = np.concatenate([np.empty(0, byte), *(view(address, (size,), byte, None) for address, size in pieces)])
    return whole.ctypes.data, whole.nbytes, whole
