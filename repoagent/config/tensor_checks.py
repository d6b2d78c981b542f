"""Rules on inputs and outputs: names, types, dims, reshapes, batch inputs and outputs."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

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

__all__ = ["batch_tensor_problems", "tensor_problems"]


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
