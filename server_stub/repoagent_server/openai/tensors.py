"""What a request asks for, as the tensors of a model: those of the ``llm`` backend, as far as the model has them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.request import Asked
from repoagent.serving.requests.tensor import Tensor
from repoagent_server.codec.binary import BY_NAME
from repoagent_server.codec.json_text import dumps_text
from repoagent_server.openai.errors import FieldError
from repoagent_server.openai.generation_request import GenerationRequest

_TEXT: Final = "text_output"
_PROMPTS: Final = ("text_input", "messages", "input_ids")
ADAPTER: Final = "lora_name"
"""The input that takes the name of an adapter."""
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


def asked_of(asks: Sequence[GenerationRequest], model: str, metadata: Mapping[str, Any]) -> list[Asked]:
    """The requests to ``model``. They differ in their prompts alone, and share the tensors of all else: a thousand
    copies of a long list of words or of a schema would be more than any request may take.

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
    for ask in asks:
        tensors = ModelTensors(model, metadata)
        _put_prompt(tensors, ask)
        prompts.append(tensors.made)
    shared = _shared(asks[0], model, metadata)
    return [Asked(model, {**made, **shared}) for made in prompts]


def _shared(ask: GenerationRequest, model: str, metadata: Mapping[str, Any]) -> dict[str, Tensor]:
    """All but the prompt."""
    tensors = ModelTensors(model, metadata)
    _put_sampling(tensors, ask)
    if ask.guide is not None:
        tensors.need(ask.guide.field, "guided_decoding_guide_type", ask.guide.type)
        tensors.need(ask.guide.field, "guided_decoding_guide", ask.guide.text)
    if ask.sampling.adapter is not None:
        tensors.need("lora_task_id", "lora_task_id", ask.sampling.adapter)
    if ask.adapter_name:
        tensors.need("model", ADAPTER, ask.adapter_name)
    if ask.top_log_probs is not None:
        tensors.need("logprobs", "top_log_probs", ask.top_log_probs)
    if ask.prompt_log_probs is not None:
        tensors.need(ask.prompt_field, "prompt_log_probs", ask.prompt_log_probs)
    if ask.usage:
        tensors.offer("return_num_cached_tokens", True)
    tensors.offer("stream", ask.stream)
    tensors.offer("exclude_input_in_output", True)
    for name in _WANTED:
        tensors.offer(name, True)
    if ask.messages is not None and ask.guide is None:
        tensors.offer("return_reasoning_open", True)
    return tensors.made


def _put_prompt(tensors: "ModelTensors", ask: GenerationRequest) -> None:
    if ask.messages is not None:
        tensors.need("messages", "messages", ask.messages)
        if ask.template_values is not None:
            tensors.need("tools", "chat_template_kwargs", ask.template_values)
    elif ask.tokens is not None:
        tensors.need("prompt", "input_ids", list(ask.tokens))
    else:
        tensors.need("prompt", "text_input", ask.text or "")


def _put_sampling(tensors: "ModelTensors", ask: GenerationRequest) -> None:
    values, seed = dict(ask.sampling.values), ask.sampling.seed
    if not tensors.has("max_tokens") and tensors.has(_SAMPLING):  # As models of vllm_backend.
        values |= {"max_tokens": limit} if (limit := ask.max_tokens or ask.usual_tokens) else {}
    elif ask.max_tokens is not None:
        tensors.need("max_tokens", "max_tokens", ask.max_tokens)
    elif ask.usual_tokens is not None:
        tensors.offer("max_tokens", ask.usual_tokens)
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
