"""Implicit state: outputs of a model that come back as inputs with the next request of the same sequence."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.tensor import DataType, Tensor, blank, read_tensor
from repoagent.storage.files.files import ModelFiles

if TYPE_CHECKING:
    from repoagent.config import ModelConfig
    from repoagent.config.model_config_pb2 import ModelSequenceBatching

_DIRECTORY: Final = "initial_state"


@dataclass(frozen=True, slots=True)
class _State:
    input_name: str
    output_name: str
    data_type: DataType
    initial: Tensor
    """What a sequence begins with, with a batch dimension of 1 if the model batches."""
    variable: bool
    """Its shape may change from request to request."""


class SequenceStates:
    """The states of one model. What a sequence has at the moment lies in its slot; this decides what to do with it."""

    def __init__(self, states: Sequence[_State], outputs: Sequence[str]) -> None:
        self._states = tuple(states)
        self._initial = {state.input_name: state.initial for state in states}
        self._outputs = tuple(outputs)
        self._made = tuple(state.output_name for state in states)
        self._variable = tuple(state.input_name for state in states if state.variable)

    @classmethod
    def of(cls, config: "ModelConfig", files: ModelFiles) -> "SequenceStates | None":
        """Those that ``config``, complete and checked, describes; None if there are none.

        Raises:
            RepoAgentError: a file with an initial state is missing, or does not have the size that its shape asks for.
        """
        batch = (1,) if config.max_batch_size else ()
        states = [_state(config.name, state, files, batch) for state in config.sequence_batching.state]
        return cls(states, [item.name for item in config.output]) if states else None

    def inputs(self, held: Mapping[str, Tensor], request: InferRequest) -> dict[str, Tensor]:
        """The states that go with ``request`` of the sequence that holds ``held``: at its start the initial ones."""
        return self._initial if request.asked.sequence_start else {**self._initial, **held}

    def shapes(self, held: Mapping[str, Tensor], request: InferRequest) -> Hashable:
        """Equal for requests whose states may share a batch."""
        inputs = self.inputs(held, request) if self._variable else {}
        return tuple(inputs[name].array.shape[1:] for name in self._variable)

    def blank(self, held: Mapping[str, Tensor], request: InferRequest) -> dict[str, Tensor]:
        """States for an empty slot beside that of ``request``."""
        inputs = self.inputs(held, request)
        return {name: Tensor(item.data_type, blank(item.data_type, item.array.shape)) for name, item in inputs.items()}

    def wanted(self, requested: tuple[str, ...]) -> tuple[str, ...]:
        """The outputs to ask the model for, where the client asks for ``requested`` (nothing: for all)."""
        return tuple(dict.fromkeys((*(requested or self._outputs), *self._made)))

    def take(self, response: InferResponse, requested: tuple[str, ...]) -> dict[str, Tensor]:
        """What the sequence holds after ``response``. States that the client did not ask for are taken out of it."""
        outputs = response.outputs
        kept = frozenset(requested or self._outputs)
        held = {}
        for state in self._states:
            tensor = outputs.get(state.output_name)
            if tensor is not None:  # What the client gets it may change: the sequence needs a copy of its own.
                shared = state.output_name in kept
                held[state.input_name] = Tensor(tensor.data_type, tensor.array.copy()) if shared else tensor
        response.outputs = {name: tensor for name, tensor in outputs.items() if name in kept}
        return held


def _state(model: str, state: "ModelSequenceBatching.State", files: ModelFiles, batch: tuple[int, ...]) -> _State:
    data_type = DataType(state.data_type)
    variable = -1 in state.dims
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
    return _State(
        state.input_name, state.output_name, data_type, Tensor(data_type, array.reshape(*batch, *dims)), variable
    )
