"""Rules on tensors that a backend makes from, or cuts along, the requests of a batch."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from repoagent.config.model_config_pb2 import TYPE_FP32, TYPE_INT32, BatchInput, BatchOutput, ModelConfig

__all__ = ["problems"]

_INPUT_KINDS: Final[dict[int, str]] = {number: kind for kind, number in BatchInput.Kind.items()}
_OUTPUT_KINDS: Final[dict[int, str]] = {number: kind for kind, number in BatchOutput.Kind.items()}


def problems(config: ModelConfig, name: str) -> Iterator[str]:
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
