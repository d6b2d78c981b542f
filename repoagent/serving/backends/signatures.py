"""Filling in a configuration from a model's tensors, and refusing one that contradicts them. The rules are Triton's."""

from dataclasses import dataclass
from typing import Any

from repoagent.config import ModelConfig
from repoagent.config.model_config_pb2 import ModelInput, ModelOutput
from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.request_checker import dims_text
from repoagent.serving.requests.tensor import DataType, shapes_agree


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One input or output of a model. A variable dimension is -1."""

    name: str
    data_type: DataType
    dims: tuple[int, ...]

    @property
    def batchable(self) -> bool:
        """The first dimension is variable."""
        return bool(self.dims) and self.dims[0] == -1


@dataclass(frozen=True, slots=True)
class Signature:
    """All inputs, outputs and overridable initialisers of a model, in the model's order."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    optional: tuple[TensorInfo, ...] = ()

    @property
    def batchable(self) -> bool:
        """Every input and output has a variable first dimension, so it can be a batch."""
        return all(info.batchable for info in (*self.inputs, *self.outputs))


def complete(config: ModelConfig, signature: Signature, *, default_max_batch_size: int) -> None:
    """Add to ``config`` what it leaves open: ``max_batch_size``, inputs, outputs.

    A model whose tensors all start with a variable dimension becomes one that batches. Raises ``InvalidArgumentError``
    if ``max_batch_size`` is given, but the model cannot batch.
    """
    if signature.batchable:
        _complete_batching(config, default_max_batch_size)
    elif config.max_batch_size:
        raise InvalidArgumentError(
            f"autofill failed for model '{config.name}': model does not support batching while non-zero "
            "max_batch_size is specified"
        )
    sequences = config.sequence_batching
    if not config.input:
        own = {item.name for item in sequences.control_input} | {state.input_name for state in sequences.state}
        _add(config.input, tuple(info for info in signature.inputs if info.name not in own), config.max_batch_size > 0)
    if not config.output:
        states = {state.output_name for state in sequences.state}
        outputs = tuple(info for info in signature.outputs if info.name not in states)
        _add(config.output, outputs, config.max_batch_size > 0)


def _complete_batching(config: ModelConfig, default_max_batch_size: int) -> None:
    if not config.max_batch_size:
        config.max_batch_size = max(0, default_max_batch_size)
    if config.max_batch_size > 1 and config.WhichOneof("scheduling_choice") is None:
        config.dynamic_batching.SetInParent()


def _add(target: Any, infos: tuple[TensorInfo, ...], batching: bool) -> None:
    for info in infos:
        item = target.add()
        item.name = info.name
        item.data_type = int(info.data_type)
        dims = info.dims[1:] if batching else info.dims
        item.dims.extend(dims or (1,))
        if not dims and batching:  # One value per batch entry: the protocol wants [N,1], the model [N].
            item.reshape.SetInParent()


def validate(config: ModelConfig, signature: Signature) -> None:
    """Raise ``InvalidArgumentError`` if names, types or dimensions of a complete ``config`` disagree with the model."""
    _check_input_count(config, signature)
    inputs = {info.name: info for info in (*signature.inputs, *signature.optional)}
    for item in config.input:
        if item.optional and config.max_batch_size:
            raise _error(config, f"optional input '{item.name}' is not supported for models that support batching")
        _check_tensor(config, item, inputs, "input")
    outputs = {info.name: info for info in signature.outputs}
    scattered = {target for item in config.batch_output for target in item.target_name}
    for output in config.output:
        _check_tensor(config, output, outputs, "output", any_dims=output.name in scattered)
    for made in config.batch_input:
        for target in made.target_name:
            _check_tensor(config, ModelInput(name=target, data_type=made.data_type), inputs, "input", any_dims=True)
    for state in config.sequence_batching.state:
        kind, dims = state.data_type, state.dims
        _check_tensor(config, ModelInput(name=state.input_name, data_type=kind, dims=dims), inputs, "input")
        _check_tensor(config, ModelOutput(name=state.output_name, data_type=kind, dims=dims), outputs, "output")


def _check_input_count(config: ModelConfig, signature: Signature) -> None:
    expected = sum(not item.optional for item in config.input) + _control_count(config)
    if expected != len(signature.inputs):
        raise _error(config, f"configuration expects {expected} inputs, model provides {len(signature.inputs)}")


def _control_count(config: ModelConfig) -> int:
    """Inputs that no client gives: sequence controls, states and batch inputs."""
    batch_inputs = sum(len(item.target_name) for item in config.batch_input)
    if not config.HasField("sequence_batching"):
        return batch_inputs
    return batch_inputs + len(config.sequence_batching.control_input) + len(config.sequence_batching.state)


def _check_tensor(
    config: ModelConfig, item: Any, infos: dict[str, TensorInfo], kind: str, *, any_dims: bool = False
) -> None:
    info = infos.get(item.name)
    if info is None:
        allowed = ", ".join(sorted(infos))
        raise _error(config, f"unexpected inference {kind} '{item.name}', allowed {kind}s are: {allowed}")
    expected = DataType(item.data_type)
    if expected is not info.data_type:
        raise _error(
            config,
            f"configuration expects datatype {expected.config_name} for {kind} '{item.name}', model provides "
            f"{info.data_type.config_name}",
        )
    dims = tuple(item.reshape.shape) if item.HasField("reshape") else tuple(item.dims)
    if any_dims or getattr(item, "allow_ragged_batch", False):
        return  # The model sees all requests of a batch in one row.
    if info.dims:
        _check_dims(config, item.name, info.dims, dims)
    elif any(dim != 1 for dim in dims):
        raise _error(
            config,
            f"scalar tensor '{item.name}', should only provide 1 in the model configuration when the model doesn't "
            f"support batching. Model configuration provided: {dims_text(dims)}.",
        )


def _check_dims(config: ModelConfig, tensor: str, model: tuple[int, ...], dims: tuple[int, ...]) -> None:
    place = f"model '{config.name}', tensor '{tensor}'"
    batching = config.max_batch_size > 0
    if batching and model[0] != -1:
        raise InvalidArgumentError(
            f"{place}: for the model to support batching the shape should have at least 1 dimension and the first "
            f"dimension must be -1; but shape expected by the model is {dims_text(model)}"
        )
    full = (-1, *dims) if batching else dims
    if shapes_agree(full, model):
        return
    detail = (
        "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete "
        if batching
        else ""
    )
    raise InvalidArgumentError(
        f"{place}: the model expects {len(model)} dimensions (shape {dims_text(model)}) but the model configuration "
        f"specifies {len(full)} dimensions ({detail}shape {dims_text(full)})"
    )


def _error(config: ModelConfig, text: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"unable to load model '{config.name}', {text}")
