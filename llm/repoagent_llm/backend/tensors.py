"""The tensors of a language model: names, types and shapes are those of tensorrtllm_backend's ``ensemble``."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from repoagent.errors import InvalidArgumentError, did_you_mean
from repoagent.serving.requests.tensor import DataType

if TYPE_CHECKING:
    from repoagent.config import ModelConfig


@dataclass(frozen=True, slots=True)
class TensorForm:
    """One input or output. ``dims`` are without the batch size."""

    data_type: DataType
    dims: tuple[int, ...] = (1,)


def _forms(data_type: DataType, *names: str, dims: tuple[int, ...] = (1,)) -> dict[str, TensorForm]:
    return {name: TensorForm(data_type, dims) for name in names}


PROMPT: Final = "text_input"
PROMPTS: Final = (PROMPT, "messages", "input_ids")
"""A text, a conversation, or tokens: every request has one of these inputs."""

INPUTS: Final[Mapping[str, TensorForm]] = {
    **_forms(DataType.BYTES, PROMPT, "messages", "chat_template_kwargs"),
    **_forms(DataType.INT32, "input_ids", dims=(-1,)),
    **_forms(DataType.INT32, "max_tokens", "min_tokens", "end_id", "pad_id", "beam_width", "num_return_sequences"),
    **_forms(DataType.INT32, "top_k"),
    **_forms(DataType.FP32, "top_p", "temperature", "length_penalty"),
    **_forms(DataType.FP32, "repetition_penalty", "presence_penalty", "frequency_penalty"),
    **_forms(DataType.UINT64, "seed"),
    **_forms(DataType.BYTES, "stop_words", "bad_words", dims=(-1,)),
    **_forms(DataType.BOOL, "stream", "exclude_input_in_output"),
    **_forms(DataType.BOOL, "return_log_probs", "return_context_logits", "return_generation_logits"),
    **_forms(DataType.BOOL, "return_perf_metrics", "return_num_input_tokens", "return_num_output_tokens"),
    **_forms(DataType.BOOL, "return_finish_reason", "return_reasoning_open"),
    **_forms(DataType.BOOL, "return_prompt_token_ids", "return_num_cached_tokens"),
    **_forms(DataType.INT32, "top_log_probs", "prompt_log_probs"),
    **_forms(DataType.BYTES, "embedding_bias_words", dims=(-1,)),
    **_forms(DataType.FP32, "embedding_bias_weights", dims=(-1,)),
    **_forms(DataType.UINT64, "lora_task_id"),
    **_forms(DataType.FP16, "lora_weights", dims=(-1, -1)),
    **_forms(DataType.INT32, "lora_config", dims=(-1, 3)),
    **_forms(DataType.BYTES, "guided_decoding_guide_type", "guided_decoding_guide", "sampling_parameters"),
    **_forms(DataType.BYTES, "lora_name"),
}

#: Names of older releases; they are there where a configuration names them.
OLDER_INPUTS: Final[Mapping[str, TensorForm]] = {
    **_forms(DataType.UINT64, "random_seed"),
    **_forms(DataType.INT32, "min_length"),
}

OUTPUTS: Final[Mapping[str, TensorForm]] = {
    **_forms(DataType.BYTES, "text_output", dims=(-1,)),
    **_forms(DataType.FP32, "cum_log_probs", dims=(-1,)),
    **_forms(DataType.FP32, "output_log_probs", dims=(-1, -1)),
    **_forms(DataType.BYTES, "token_log_probs", "prompt_token_log_probs", dims=(-1,)),
    **_forms(DataType.FP32, "context_logits", dims=(-1, -1)),
    **_forms(DataType.FP32, "generation_logits", dims=(-1, -1, -1)),
    **_forms(DataType.INT32, "batch_index", "sequence_index"),
    **_forms(DataType.BYTES, "finish_reason", dims=(-1,)),
    **_forms(DataType.INT32, "stop_token_id", dims=(-1,)),
    **_forms(DataType.INT32, "num_input_tokens", "num_output_tokens", "num_cached_tokens"),
    **_forms(DataType.BOOL, "reasoning_open"),
    **_forms(DataType.INT32, "prompt_token_ids", dims=(-1,)),
    **_forms(DataType.INT32, "kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks"),
    **_forms(DataType.INT64, "arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns"),
    **_forms(DataType.FP32, "acceptance_rate"),
    **_forms(DataType.INT32, "total_accepted_draft_tokens", "total_draft_tokens"),
}

POOLING: Final = "pooling"
"""The parameter of a model of embeddings."""
EMBEDDING: Final = "embedding"
_TOKENS: Final = "input_ids"
_COUNT: Final = "num_input_tokens"
_POOLED_INPUTS: Final = {name: INPUTS[name] for name in (PROMPT, _TOKENS)}
POOLED_OUTPUTS: Final[Mapping[str, TensorForm]] = {
    **_forms(DataType.FP32, EMBEDDING, dims=(-1,)),
    _COUNT: OUTPUTS[_COUNT],
}
"""Of a model of embeddings, which takes a text or its tokens."""

_WHOLE: Final = {DataType.INT32, DataType.INT64, DataType.UINT32, DataType.UINT64}
_REAL: Final = {DataType.FP16, DataType.FP32, DataType.FP64}


def is_set(text: str) -> bool:
    """Whether a parameter has a value: not if it is empty, or a ``${placeholder}`` of a template."""
    return bool(text) and not (text.startswith("${") and text.endswith("}"))


def makes_vectors(config: "ModelConfig") -> bool:
    """Whether ``config`` is of a model of embeddings."""
    return POOLING in config.parameters and is_set(config.parameters[POOLING].string_value)


def complete_tensors(config: "ModelConfig") -> None:
    """Add the inputs and outputs that ``config`` does not name; what it names stays as it is, but a prompt is
    optional."""
    named = {item.name for item in config.input}
    pools = makes_vectors(config)
    inputs, outputs = (_POOLED_INPUTS, POOLED_OUTPUTS) if pools else (INPUTS, OUTPUTS)
    for item in config.input:
        item.optional |= item.name in PROMPTS  # Each request has another one of these.
    for name, form in inputs.items():
        if name not in named:
            data_type: Any = int(form.data_type)
            config.input.add(name=name, data_type=data_type, dims=form.dims, optional=True)
    named = {item.name for item in config.output}
    for name, form in outputs.items():
        if name not in named:
            data_type = int(form.data_type)
            config.output.add(name=name, data_type=data_type, dims=form.dims)


def check_tensors(config: "ModelConfig") -> None:
    """Check that ``config`` names tensors of such a model only.

    Raises:
        InvalidArgumentError: a tensor is unknown or has a type that it cannot have, or there is no prompt.
    """
    pools = makes_vectors(config)
    _check("input", config.input, _POOLED_INPUTS if pools else {**INPUTS, **OLDER_INPUTS})
    _check("output", config.output, POOLED_OUTPUTS if pools else OUTPUTS)
    if PROMPT not in {item.name for item in config.input}:
        raise InvalidArgumentError(f"model '{config.name}' has no input '{PROMPT}', which is the prompt")


def _check(kind: str, tensors: Iterable[Any], known: Mapping[str, TensorForm]) -> None:
    for tensor in tensors:
        form = known.get(tensor.name)
        if form is None:
            raise InvalidArgumentError(
                f"{kind} '{tensor.name}' is not one of a language model (backend 'llm')"
                f"{did_you_mean(tensor.name, known) or '; there are ' + ', '.join(known)}"
            )
        wanted = DataType(tensor.data_type)
        if wanted not in (_types_like(form.data_type) if kind == "input" else {form.data_type}):
            raise InvalidArgumentError(
                f"{kind} '{tensor.name}' of a language model is {form.data_type.name}, not {wanted.name}"
            )


def _types_like(data_type: DataType) -> set[DataType]:
    """The types in which a value of ``data_type`` may be given: releases differ in signs and sizes."""
    return next((types for types in (_WHOLE, _REAL) if data_type in types), {data_type})
