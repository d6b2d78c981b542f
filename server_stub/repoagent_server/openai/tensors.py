"""What a request asks for, as the tensors of a model: those of the ``llm`` backend, as far as the model has them."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.request import Asked
from repoagent.serving.requests.tensor import Tensor
from repoagent_server.codec.binary import BY_NAME
from repoagent_server.codec.json_text import dumps_text
from repoagent_server.openai.errors import FieldError
from repoagent_server.openai.text_request import TextRequest

_TEXT: Final = "text_output"
_PROMPTS: Final = ("text_input", "messages", "input_ids")
_SAMPLING: Final = "sampling_parameters"
_TENSORS: Final[Mapping[str, tuple[str, ...]]] = {
    "temperature": ("temperature",),
    "top_p": ("top_p",),
    "top_k": ("top_k",),
    "presence_penalty": ("presence_penalty",),
    "frequency_penalty": ("frequency_penalty",),
    "repetition_penalty": ("repetition_penalty",),
    "min_tokens": ("min_tokens", "min_length"),
    "seed": ("seed", "random_seed"),
    "stop": ("stop_words",),
    "bad_words": ("bad_words",),
    "n": ("num_return_sequences",),
}
"""Names of sampling parameters, and of inputs for models that take no ``sampling_parameters``."""
_WANTED: Final = ("return_finish_reason", "return_num_input_tokens", "return_num_output_tokens")


def makes_text(metadata: Mapping[str, Any]) -> bool:
    """Whether a model with these metadata has the tensors of one that generates text."""
    inputs, outputs = ({item["name"] for item in metadata[kind]} for kind in ("inputs", "outputs"))
    return _TEXT in outputs and not inputs.isdisjoint(_PROMPTS)


def asked_of(
    asked: TextRequest, model: str, metadata: Mapping[str, Any], adapter: str = "", *, stream: bool = False
) -> list[Asked]:
    """The requests to ``model``, one for each prompt. They share the tensors of all else: a thousand copies of a long
    list of words or of a schema would be more than any request may take.

    Args:
        asked: What is asked for.
        model: The name of the model.
        metadata: What it takes.
        adapter: The name that the model has for an adapter of it; at most one of this and the number in ``sampling``.
        stream: Whether it is to answer in pieces.

    Raises:
        FieldError: the model has no input for something that is asked.
        InvalidArgumentError: it does not generate text.
    """
    if not makes_text(metadata):
        raise InvalidArgumentError(
            f"model '{model}' does not generate text: it needs an output '{_TEXT}', and an input 'text_input' or "
            "'messages'"
        )
    prompts = []
    for name, prompt in asked.prompts:
        tensors = ModelTensors(model, metadata)
        tensors.need("messages" if asked.is_chat else "prompt", name, prompt)
        prompts.append(tensors.made)
    tensors = ModelTensors(model, metadata)
    _put_all_else(tensors, asked, adapter)
    tensors.offer("stream", stream)
    return [Asked(model, {**made, **tensors.made}) for made in prompts]


def _put_all_else(tensors: "ModelTensors", asked: TextRequest, adapter: str) -> None:
    """All but the prompt."""
    if asked.template_values is not None:
        tensors.need("tools", "chat_template_kwargs", asked.template_values)
    _put_sampling(tensors, asked)
    if asked.guide is not None:
        tensors.need(asked.guide.field, "guided_decoding_guide_type", asked.guide.type)
        tensors.need(asked.guide.field, "guided_decoding_guide", asked.guide.text)
    if asked.sampling.adapter is not None:
        tensors.need("lora_task_id", "lora_task_id", asked.sampling.adapter)
    if adapter:
        tensors.need("model", "lora_name", adapter)
    if asked.top_log_probs is not None:
        tensors.need("logprobs", "top_log_probs", asked.top_log_probs)
    if asked.prompt_log_probs is not None:
        field = "echo" if asked.ranked is None else "prompt_logprobs"
        tensors.need(field, "prompt_log_probs", asked.prompt_log_probs)
    if asked.usage:
        tensors.offer("return_num_cached_tokens", True)
    tensors.offer("exclude_input_in_output", True)
    for name in _WANTED:
        tensors.offer(name, True)
    if asked.is_chat and asked.guide is None:
        tensors.offer("return_reasoning_open", True)


def _put_sampling(tensors: "ModelTensors", asked: TextRequest) -> None:
    values, seed = dict(asked.sampling.values), asked.sampling.seed
    if not tensors.has("max_tokens") and tensors.has(_SAMPLING):  # As models of vllm_backend.
        values |= {"max_tokens": limit} if (limit := asked.max_tokens or asked.usual_tokens) else {}
    elif asked.max_tokens is not None:
        tensors.need("max_tokens", "max_tokens", asked.max_tokens)
    elif asked.usual_tokens is not None:
        tensors.offer("max_tokens", asked.usual_tokens)
    if tensors.has(_SAMPLING):
        if seed is not None:
            values["seed"] = seed
        tensors.offer(_SAMPLING, dumps_text(values))
        return
    if seed is not None:
        tensors.offer("seed", seed) or tensors.offer("random_seed", seed)
    if values.get("temperature") != 0 and "top_p" not in values:
        tensors.offer("top_p", 1.0)  # Without it, texts of the llm backend are greedy.
    for name, value in values.items():
        if not any(tensors.offer(tensor, value) for tensor in _TENSORS.get(name, ())):
            raise FieldError(name, f"cannot be honoured: model '{tensors.model}' has no input for it")


class ModelTensors:
    """Makes inputs in the type and shape that the model wants."""

    def __init__(self, model: str, metadata: Mapping[str, Any]) -> None:
        self.model = model
        self.made: dict[str, Tensor] = {}
        self._inputs = {item["name"]: item for item in metadata["inputs"]}

    def has(self, name: str) -> bool:
        return name in self._inputs

    def offer(self, name: str, value: Any) -> bool:
        """Give it to a model that takes it, else leave it out."""
        given = self._inputs.get(name)
        if given is None:
            return False
        values = value if isinstance(value, list) else [value]
        info = BY_NAME[given["datatype"]]
        array = np.empty(len(values), info.dtype)
        try:
            array[:] = [item.encode("utf-8", "surrogateescape") if isinstance(item, str) else item for item in values]
        except (OverflowError, ValueError, TypeError):
            raise FieldError(name, f"cannot be honoured: model '{self.model}' takes a {info.name} for it") from None
        shape = given["shape"]
        self.made[name] = Tensor(info.data_type, array.reshape([1] * (len(shape) - 1) + [len(values)]))
        return True

    def need(self, field: str, name: str, value: Any) -> None:
        """Give it; ``field`` of the request cannot be honoured without."""
        if not self.offer(name, value):
            raise FieldError(field, f"cannot be honoured: model '{self.model}' has no input '{name}'")
