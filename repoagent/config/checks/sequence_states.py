"""Rules on the implicit states of sequences."""

from collections.abc import Iterator

from repoagent.config.model_config_pb2 import ModelConfig, ModelSequenceBatching

__all__ = ["problems"]


def problems(config: ModelConfig, name: str) -> Iterator[str]:
    """Problems of ``sequence_batching.state``."""
    inputs = {item.name for item in config.input} | {item.name for item in config.sequence_batching.control_input}
    for state in config.sequence_batching.state:
        place = f"sequence batching state '{state.input_name}' of {name}"
        if not (state.input_name and state.output_name):
            yield f"sequence batching states must have an 'input_name' and an 'output_name' for {name}"
        if state.input_name in inputs:
            yield f"{place}: there is another input of that name"
        inputs.add(state.input_name)
        if not state.data_type or any(dim < 1 and dim != -1 for dim in state.dims):
            yield f"{place}: a 'data_type' and 'dims' above 0, or -1, are required"
        if len(state.initial_state) > 1:
            yield (
                f"initial_state field for state input '{state.input_name}' must contain exactly one or zero element. "
                f"Found '{len(state.initial_state)}' elements."
            )
        for initial in state.initial_state:
            yield from (f"{place}: initial_state {problem}" for problem in _initial_problems(state, initial))


def _initial_problems(state: ModelSequenceBatching.State, initial: ModelSequenceBatching.InitialState) -> Iterator[str]:
    if not initial.name:
        yield "must have a 'name'"
    if initial.data_type != state.data_type:
        yield "must have the data type of the state"
    fits = len(initial.dims) == len(state.dims) and all(
        dim > 0 and want in (-1, dim) for want, dim in zip(state.dims, initial.dims, strict=True)
    )
    if not fits:
        yield f"must have dims above 0 that fit those of the state, {list(state.dims)}, not {list(initial.dims)}"
    if initial.WhichOneof("state_data") is None:
        yield "must have 'zero_data' or a 'data_file'"
