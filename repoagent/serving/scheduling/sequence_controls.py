"""The inputs that sequences add to a request: its place in the sequence, and implicit states."""

import itertools
from collections.abc import Callable, Hashable, Mapping
from typing import Final

import numpy as np

from repoagent.config import ModelConfig
from repoagent.config.model_config_pb2 import ModelSequenceBatching
from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse
from repoagent.serving.requests.senders import LayerSender
from repoagent.serving.requests.tensor import NUMPY_TYPES, Array, DataType, Tensor, blank, read_tensor
from repoagent.serving.scheduling.sequence_table import Slot
from repoagent.storage.files.files import ModelFiles

_DIRECTORY: Final = "initial_state"


class SequenceStates:
    """The states of one model. What a sequence has at the moment lies in its slot; this decides what to do with it."""

    def __init__(self, config: ModelConfig, files: ModelFiles) -> None:
        """See :meth:`of`."""
        states = config.sequence_batching.state
        self._outputs = tuple(item.name for item in config.output)
        self._made = {state.output_name: state.input_name for state in states}
        """The model's outputs, and the inputs that they are for the next request."""
        self._variable = tuple(state.input_name for state in states if -1 in state.dims)
        """The inputs whose shapes may change from request to request."""
        batch = (1,) if config.max_batch_size else ()
        self._initial = {state.input_name: _initial(config.name, state, files, batch) for state in states}

    @classmethod
    def of(cls, config: ModelConfig, files: ModelFiles) -> "SequenceStates | None":
        """Those that ``config``, complete and checked, describes; None if there are none. Raises if a file with an
        initial state is missing, or does not have the size of its shape."""
        return cls(config, files) if config.sequence_batching.state else None

    def inputs(self, held: Mapping[str, Tensor], request: InferRequest) -> dict[str, Tensor]:
        """The states that go with ``request`` of the sequence that holds ``held``: at its start the initial ones."""
        return self._initial if request.asked.sequence_start else {**self._initial, **held}

    def shapes(self, held: Mapping[str, Tensor], request: InferRequest) -> Hashable:
        """Equal for requests whose states may share a batch."""
        inputs = self.inputs(held, request) if self._variable else {}
        return tuple(inputs[name].array.shape[1:] for name in self._variable)

    def blank(self, held: Mapping[str, Tensor], request: InferRequest) -> dict[str, Tensor]:
        """States for an empty slot beside that of ``request``."""
        return _blanks(self.inputs(held, request))

    def wanted(self, requested: tuple[str, ...]) -> tuple[str, ...]:
        """The outputs to ask the model for, where the client asks for ``requested`` (nothing: for all)."""
        return tuple(dict.fromkeys((*(requested or self._outputs), *self._made)))

    def take(self, response: InferResponse, requested: tuple[str, ...]) -> dict[str, Tensor]:
        """What the sequence holds after ``response``. States that the client did not ask for are taken out of it."""
        outputs = response.outputs
        kept = frozenset(requested or self._outputs)
        held = {}
        for name, input_name in self._made.items():
            tensor = outputs.get(name)
            if tensor is not None:  # What the client gets it may change: the sequence needs a copy of its own.
                held[input_name] = Tensor(tensor.data_type, tensor.array.copy()) if name in kept else tensor
        response.outputs = {name: tensor for name, tensor in outputs.items() if name in kept}
        return held


def _initial(model: str, state: ModelSequenceBatching.State, files: ModelFiles, batch: tuple[int, ...]) -> Tensor:
    """What a sequence begins with, with the dimensions ``batch`` before those of the state."""
    data_type = DataType(state.data_type)
    if state.initial_state:
        initial = state.initial_state[0]
        dims = tuple(initial.dims)
        if initial.WhichOneof("state_data") == "data_file":
            place = f"initial state '{initial.name}' of model '{model}'"
            array = read_tensor(files, f"{_DIRECTORY}/{initial.data_file}", place, data_type, dims)
        else:
            array = blank(data_type, dims)
    else:
        dims = tuple(1 if dim < 0 else dim for dim in state.dims)
        array = blank(data_type, dims)
    return Tensor(data_type, array.reshape(*batch, *dims))


_Control = ModelSequenceBatching.Control
_START: Final = _Control.CONTROL_SEQUENCE_START
_END: Final = _Control.CONTROL_SEQUENCE_END
_READY: Final = _Control.CONTROL_SEQUENCE_READY
_CORRELATION: Final = _Control.CONTROL_SEQUENCE_CORRID


def _values(control: ModelSequenceBatching.Control) -> Array:
    """The value for false, then the one for true."""
    if control.int32_false_true:
        return np.array(control.int32_false_true, np.int32)
    if control.fp32_false_true:
        return np.array(control.fp32_false_true, np.float32)
    return np.array(control.bool_false_true, np.bool_)


class SequenceControls:
    """Makes the control inputs of one model, and the requests that fill its empty slots."""

    def __init__(self, config: ModelConfig, states: SequenceStates | None = None) -> None:
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
        """Raise ``InvalidArgumentError`` without a correlation ID, or for one that the model cannot take."""
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
        inputs = _blanks(like.inputs)
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


def _blanks(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Zeros or empty texts in the shapes of ``tensors``."""
    return {name: Tensor(it.data_type, blank(it.data_type, it.array.shape)) for name, it in tensors.items()}


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
