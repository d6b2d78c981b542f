"""The inputs with the place of each request in its sequence."""

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from repoagent.config.model_config_pb2 import ModelSequenceBatching
from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse
from repoagent.serving.requests.senders import LayerSender
from repoagent.serving.requests.tensor import NUMPY_TYPES, Array, DataType, Tensor
from repoagent.serving.scheduling.sequence_states import SequenceStates
from repoagent.serving.scheduling.sequence_table import Slot

if TYPE_CHECKING:
    from repoagent.config import ModelConfig


_Control = ModelSequenceBatching.Control
_START: Final = _Control.CONTROL_SEQUENCE_START
_END: Final = _Control.CONTROL_SEQUENCE_END
_READY: Final = _Control.CONTROL_SEQUENCE_READY
_CORRELATION: Final = _Control.CONTROL_SEQUENCE_CORRID


def _values(control: "ModelSequenceBatching.Control") -> Array:
    """The value for false, then the one for true."""
    if control.int32_false_true:
        return np.array(control.int32_false_true, np.int32)
    if control.fp32_false_true:
        return np.array(control.fp32_false_true, np.float32)
    return np.array(control.bool_false_true, np.bool_)


class SequenceControls:
    """Makes the control inputs of one model, and the requests that fill its empty slots."""

    def __init__(self, config: "ModelConfig", states: SequenceStates | None = None) -> None:
        self.states = states
        """The implicit states of the model, if it has any."""
        self._model = config.name
        self._shape = (1, 1) if config.max_batch_size else (1,)
        controls = [(item.name, control) for item in config.sequence_batching.control_input for control in item.control]
        flags = [
            (name, int(control.kind), _values(control)) for name, control in controls if control.kind != _CORRELATION
        ]
        self._flags: Mapping[tuple[bool, ...], dict[str, Tensor]] = {
            given: self._flag_tensors(flags, dict(zip((_START, _END, _READY), given, strict=True)))
            for given in itertools.product((False, True), repeat=3)
        }
        self._correlation = next(
            ((name, DataType(control.data_type)) for name, control in controls if control.kind == _CORRELATION), None
        )

    def _flag_tensors(self, flags: list[tuple[str, int, Array]], given: Mapping[int, bool]) -> dict[str, Tensor]:
        return {name: Tensor.of(values[int(given[kind])].reshape(self._shape)) for name, kind, values in flags}

    def check(self, request: InferRequest) -> None:
        """Refuse a request that cannot be part of a sequence.

        Raises:
            InvalidArgumentError: it has no correlation ID, or one that the model cannot take.
        """
        correlation_id = request.asked.correlation_id
        if not correlation_id:
            raise InvalidArgumentError(
                f"inference request to model '{self._model}' must specify a non-zero or non-empty correlation ID"
            )
        if self._correlation is not None and isinstance(correlation_id, str) is not self._takes_text:
            name, data_type = self._correlation
            raise InvalidArgumentError(
                f"inference request to model '{self._model}' must specify a correlation ID that is a "
                f"{'string' if self._takes_text else 'number'}: control input '{name}' is of type {data_type.name}"
            )

    @property
    def _takes_text(self) -> bool:
        return self._correlation is not None and self._correlation[1] is DataType.BYTES

    def of(self, request: InferRequest) -> dict[str, Tensor]:
        """The control inputs that go with ``request``."""
        flags = self._flags[request.asked.sequence_start, request.asked.sequence_end, True]
        return flags | self._correlation_tensor(request.asked.correlation_id)

    def _correlation_tensor(self, correlation_id: int | str) -> dict[str, Tensor]:
        if self._correlation is None:
            return {}
        name, data_type = self._correlation
        if data_type is DataType.BYTES:
            array = np.array([str(correlation_id).encode()], object)
        else:
            # An ID too large for the type loses its upper bits.
            array = np.array([int(correlation_id) % 2**64], np.uint64).astype(NUMPY_TYPES[data_type])
        return {name: Tensor(data_type, array.reshape(self._shape))}

    def placeholder(self, like: InferRequest, slot: Slot) -> InferRequest:
        """A request that is not ready: the inputs of ``like`` in ``slot``, with zeros or empty texts in them."""
        inputs = {name: Tensor(tensor.data_type, _blank(tensor)) for name, tensor in like.inputs.items()}
        states = self.states.blank(slot.states, like) if self.states is not None else {}
        no_sequence: int | str = "" if self._takes_text else 0
        return InferRequest(
            # The model is asked for the states that the other requests of the batch will ask for.
            Asked(
                like.model_name,
                inputs | self._flags[False, False, False] | self._correlation_tensor(no_sequence) | states,
                like.asked.model_version,
                requested_outputs=self.states.wanted(like.requested_outputs) if self.states else like.requested_outputs,
            ),
            placeholder=True,
        )


def _blank(tensor: Tensor) -> Array:
    if tensor.data_type is DataType.BYTES:
        return np.full(tensor.array.shape, b"", object)
    return np.zeros_like(tensor.array)


class _SlotSender(LayerSender):
    """Keeps the states that come with an answer in ``slot``, and calls ``over`` after the final one."""

    __slots__ = ("_over", "_requested", "_slot", "_states")

    def __init__(
        self, request: InferRequest, slot: Slot, states: SequenceStates | None, over: Callable[[], None]
    ) -> None:
        super().__init__(request)
        self._slot = slot
        self._states = states
        self._requested = request.requested_outputs
        self._over = over

    def send(self, response: InferResponse | None, final: bool) -> None:
        if response is not None and response.error is None and self._states is not None:
            held = self._states.take(response, self._requested)
            if not self._request.asked.sequence_end:  # After an end the slot belongs to another sequence.
                self._slot.states = held
        try:
            super().send(response, final)
        finally:
            if final:
                self._over()


def put_into_slot(
    request: InferRequest, slot: Slot, controls: SequenceControls, over: Callable[[], None]
) -> InferRequest:
    """Make ``request`` ready for execution; ``over`` is called after its final answer, on the thread that sends it."""
    states = controls.states
    _SlotSender(request, slot, states, over)
    inputs = {**request.inputs, **controls.of(request)}
    if states is not None:
        inputs |= states.inputs(slot.states, request)
        request.requested_outputs = states.wanted(request.requested_outputs)
    request.inputs = inputs
    return request
