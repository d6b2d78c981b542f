"""Whether a configuration makes sense, with Triton's texts where it has the rule."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from repoagent.config.backends import BACKEND_OF_PLATFORM, ENSEMBLE, backend_of
from repoagent.config.model_config_pb2 import (
    TYPE_FP32,
    TYPE_INT32,
    TYPE_INVALID,
    BatchInput,
    BatchOutput,
    ModelConfig,
    ModelInput,
    ModelOutput,
)
from repoagent.config.scheduling_checks import (
    dynamic_batching_problems,
    ensemble_problems,
    instance_group_problems,
    sequence_batching_problems,
    sequence_state_problems,
)
from repoagent.errors import ConfigError, did_you_mean


def check(
    config: ModelConfig,
    *,
    model_name: str | None = None,
    source: str | None = None,
    complete: bool = False,
    gpus: Collection[int] | None = None,
) -> None:
    """Raise :class:`~repoagent.errors.ConfigError` with the first of :func:`problems`; ``source`` is named in it."""
    for problem in problems(config, model_name=model_name, complete=complete, gpus=gpus):
        raise ConfigError(problem, source=source)


def problems(
    config: ModelConfig,
    *,
    model_name: str | None = None,
    complete: bool = False,
    gpus: Collection[int] | None = None,
) -> Iterator[str]:
    """Everything in ``config`` that cannot work, one text each.

    ``model_name`` is the name of the model's directory, which ``config.name`` must equal if it is given. With
    ``complete`` also what must be there once a backend and :func:`~repoagent.config.normalize` have filled in what the
    file may leave out: name, backend, version policy, types and dims of tensors, instance groups. ``gpus`` are the
    devices that may be used; None means that this is not known here.
    """
    name = config.name or model_name or ""
    yield from _name_problems(config, model_name=model_name, complete=complete)
    yield from dynamic_batching_problems(config, name)
    yield from sequence_batching_problems(config, name)
    yield from ensemble_problems(config, name)
    yield from _response_cache_problems(config, name)
    yield from _metric_problems(config)
    yield from tensor_problems(config, name, complete=complete)
    yield from batch_tensor_problems(config, name)
    yield from instance_group_problems(config, name, complete=complete, gpus=gpus)
    yield from _path_problems(config, name)
    yield from sequence_state_problems(config, name)
    yield from _agent_problems(config, name)


def _name_problems(config: ModelConfig, *, model_name: str | None, complete: bool) -> Iterator[str]:
    """Problems with names, ``max_batch_size`` and the presence of a version policy."""
    name = config.name or model_name or ""
    if not config.name and complete:
        yield "model configuration must specify 'name'"
    if config.name and model_name and config.name != model_name:
        yield (
            f"unexpected directory name '{model_name}' for model '{config.name}', directory name must equal model name"
        )
    yield from _backend_problems(config, name, complete)
    if config.max_batch_size < 0:
        yield f"'max_batch_size' must be non-negative value for {name}"
    if complete and not config.HasField("version_policy"):
        yield f"must specify 'version policy' for {name}"


def _backend_problems(config: ModelConfig, name: str, complete: bool) -> Iterator[str]:
    platform, backend = config.platform, config.backend
    if platform == ENSEMBLE:
        if backend:
            yield f"Ensemble model '{name}' must have platform type '{platform}' and empty backend type"
    elif not backend:
        yield from _missing_backend(config, name, complete)
    elif platform and backend in BACKEND_OF_PLATFORM.values() and BACKEND_OF_PLATFORM.get(platform) != backend:
        yield f"unexpected 'platform' and 'backend' pair, got:{platform}, {backend}"


def _missing_backend(config: ModelConfig, name: str, complete: bool) -> Iterator[str]:
    if config.platform and config.platform not in BACKEND_OF_PLATFORM:
        meant = did_you_mean(config.platform, BACKEND_OF_PLATFORM)
        yield f"unexpected platform type '{config.platform}' for {name}{meant}"
    elif complete and not config.HasField("ensemble_scheduling") and not backend_of(config):
        yield (
            f"Invalid model name: Could not determine backend for model '{name}' with no backend in model "
            "configuration. Expected model name of the form 'model.<backend_name>'."
        )


def _response_cache_problems(config: ModelConfig, name: str) -> Iterator[str]:
    if not config.response_cache.enable:
        return
    if config.HasField("sequence_batching"):
        yield _text(name, "sequence batching scheduler")
    if config.model_transaction_policy.decoupled:
        yield _text(name, "'decoupled' transaction policy")


def _text(name: str, feature: str) -> str:
    return f"Response Cache does not currently support model {name} with {feature}. Please disable the response cache."


def _path_problems(config: ModelConfig, name: str) -> Iterator[str]:
    """File names that are absolute, contain ``..`` or a NUL."""
    for field, path in _paths(config):
        if path.startswith("/") or ".." in path.split("/") or "\0" in path:
            yield f"'{field}' must name a file inside the model directory, got {path!r} for {name}"


def _paths(config: ModelConfig) -> Iterator[tuple[str, str]]:
    yield "default_model_filename", config.default_model_filename
    yield from (("cc_model_filenames", path) for path in config.cc_model_filenames.values())
    yield from (("label_filename", output.label_filename) for output in config.output)
    for warmup in config.model_warmup:
        yield from (("input_data_file", tensor.input_data_file) for tensor in warmup.inputs.values())
    for state in config.sequence_batching.state:
        yield from (("data_file", initial.data_file) for initial in state.initial_state)


_TAG: Final = re.compile(r"[A-Za-z0-9_]+")


def _metric_problems(config: ModelConfig) -> Iterator[str]:
    for tag in sorted(config.metric_tags):
        if not _TAG.fullmatch(tag):
            yield f"metric tag '{tag}' must be of letters, digits and '_', to be a label of metrics"
    for control in config.model_metrics.metric_control:
        if not control.HasField("metric_identifier"):
            yield "metric control must specify 'metric_identifier'"
        elif not control.metric_identifier.family:
            yield "metric identifier must specify non-empty 'family'"
        if not control.HasField("histogram_options"):
            yield "metric control must specify 'histogram_options'"
        elif not control.histogram_options.buckets:
            yield "histogram options must specify non-empty 'buckets'"
        elif sorted(set(control.histogram_options.buckets)) != list(control.histogram_options.buckets):
            yield "histogram options must specify 'buckets' in ascending order"


def _agent_problems(config: ModelConfig, name: str) -> Iterator[str]:
    """Agents without a name, and parameters without a key."""
    for index, agent in enumerate(config.model_repository_agents.agents):
        if not agent.name:
            yield f"must specify 'name' in repository agent {index} of model '{name}'"
        if any(not parameter.key for parameter in agent.parameters):
            yield f"must specify 'key' in every parameter of repository agent {index} of model '{name}'"


_INPUT_KINDS: Final[dict[int, str]] = {number: kind for kind, number in BatchInput.Kind.items()}
_OUTPUT_KINDS: Final[dict[int, str]] = {number: kind for kind, number in BatchOutput.Kind.items()}


def batch_tensor_problems(config: ModelConfig, name: str) -> Iterator[str]:
    """Problems of ``batch_input`` and ``batch_output``."""
    inputs = {tensor.name for tensor in config.input}
    outputs = {tensor.name for tensor in config.output}
    for entry in config.batch_input:
        yield from (f"{problem} for {name}" for problem in _input_problems(entry, inputs))
    for cut in config.batch_output:
        yield from (f"{problem} for {name}" for problem in _output_problems(cut, inputs, outputs))


def _input_problems(entry: BatchInput, inputs: set[str]) -> Iterator[str]:
    yield from _source_problems("input", _INPUT_KINDS.get(entry.kind), entry.source_input, inputs)
    if entry.data_type not in (TYPE_INT32, TYPE_FP32):
        yield "batch input data type must be TYPE_INT32 or TYPE_FP32"


def _output_problems(entry: BatchOutput, inputs: set[str], outputs: set[str]) -> Iterator[str]:
    yield from _source_problems("output", _OUTPUT_KINDS.get(entry.kind), entry.source_input, inputs)
    seen: set[str] = set()
    for target in entry.target_name:
        if target not in outputs:
            yield f"unknown target output name '{target}'"
        elif target in seen:
            yield f"target output name '{target}' can only be specified once"
        seen.add(target)


def _source_problems(side: str, kind: str | None, sources: Sequence[str], known: Iterable[str]) -> Iterator[str]:
    if kind is None:
        yield f"unknown batch {side} kind ''"
    elif len(sources) != 1:
        yield f"batch {side} kind '{kind}' expects 1 source input, got {len(sources)}"
    yield from (f"unknown source input name '{source}'" for source in sources if source not in known)


_ANY_SIZE: Final = -1
_IMAGE_FORMATS: Final = (ModelInput.FORMAT_NHWC, ModelInput.FORMAT_NCHW)
_TENSORRT: Final = "tensorrt_plan"

_Tensor: TypeAlias = ModelInput | ModelOutput


def tensor_problems(config: ModelConfig, name: str, *, complete: bool) -> Iterator[str]:
    """Problems of single tensors, in order, and names that are given twice."""
    for tensor in config.input:
        found = [*_shape_problems(tensor, "model input ", config, complete), *_format_problems(tensor)]
        yield from (f"{problem} for {name}" for problem in [*found, *_tensorrt_problems(tensor, "input", config)])
    for output in config.output:
        found = [*_shape_problems(output, "model output ", config, complete)]
        yield from (f"{problem} for {name}" for problem in [*found, *_tensorrt_problems(output, "output", config)])
    yield from _repeated_names(config.input, "input", name)
    yield from _repeated_names(config.output, "output", name)


def _repeated_names(tensors: Iterable[_Tensor], kind: str, name: str) -> Iterator[str]:
    for tensor, count in Counter(tensor.name for tensor in tensors).items():
        if tensor and count > 1:
            yield f"model {kind} '{tensor}' is specified {count} times for {name}"


def _shape_problems(tensor: _Tensor, prefix: str, config: ModelConfig, complete: bool) -> Iterator[str]:
    if not tensor.name:
        yield f"{prefix}must specify 'name'"
        return
    prefix = f"{prefix}'{tensor.name}' "
    if complete and tensor.data_type == TYPE_INVALID:
        yield f"{prefix}must specify 'data_type'"
    if complete and not tensor.dims:
        yield f"{prefix}must specify 'dims'"
    if not all(map(_is_size, tensor.dims)):
        yield f"{prefix}dimension must be integer >= 1, or -1 to indicate a variable-size dimension"
    elif tensor.HasField("reshape") and tensor.dims:
        yield from _reshape_problems(tensor, prefix, config.max_batch_size)


def _is_size(dim: int) -> bool:
    return dim >= 1 or dim == _ANY_SIZE


def _reshape_problems(tensor: _Tensor, prefix: str, max_batch_size: int) -> Iterator[str]:
    dims, shape = list(tensor.dims), list(tensor.reshape.shape)
    if not shape and max_batch_size == 0:
        yield f"{prefix}cannot have empty reshape for non-batching model as scalar tensors are not supported"
    elif not all(map(_is_size, shape)):
        yield f"{prefix}reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension"
    elif (_ANY_SIZE in dims) and (_ANY_SIZE in shape) and dims.count(_ANY_SIZE) != shape.count(_ANY_SIZE):
        yield f"{prefix}has different number of variable-size dimensions for dims and reshape"
    elif _sizes_between_variables(dims) != _sizes_between_variables(shape):
        yield f"{prefix}has different size for dims and reshape"


def _sizes_between_variables(shape: Sequence[int]) -> list[int]:
    """Element counts of the stretches between variable dimensions: ``[2, 4, -1, 6]`` gives ``[8, 6]``."""
    sizes, start = [], 0
    for end in [*(index for index, dim in enumerate(shape) if dim == _ANY_SIZE), len(shape)]:
        sizes.append(math.prod(shape[start:end]))
        start = end + 1
    return sizes


def _format_problems(tensor: ModelInput) -> Iterator[str]:
    if tensor.format in _IMAGE_FORMATS and len(tensor.dims) != 3:
        yield "model input NHWC/NCHW require 3 dims"


def _tensorrt_problems(tensor: _Tensor, kind: str, config: ModelConfig) -> Iterator[str]:
    is_tensorrt = config.platform == _TENSORRT or config.backend == "tensorrt"
    if tensor.is_shape_tensor and not is_tensorrt:
        yield "shape tensors are only supported for TensorRT platform"
    if not tensor.is_non_linear_format_io:
        return
    if not is_tensorrt:
        yield "Non-linear IO format is only supported for the TensorRT platform"
    elif len(tensor.dims) != 3:
        yield f"Non-linear IO format {kind} requires 3 dims"
