"""The ``parameters`` of a model's configuration, as numbers and truth values."""

import logging
from typing import TYPE_CHECKING, Final

from repoagent.config.suggestions import did_you_mean
from repoagent.errors import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["Parameters"]

logger: Final = logging.getLogger(__name__)

_TRUE: Final = frozenset({"1", "true", "on", "yes", "t", "y"})
_FALSE: Final = frozenset({"0", "false", "off", "no", "f", "n"})

#: Parameters of tensorrtllm_backend about what there is not here; they change no answer.
_MEANINGLESS: Final = {
    "FORCE_CPU_ONLY_INPUT_TENSORS": "tensors are in the memory of the CPU",
    "cancellation_check_period_ms": "it is 100",
    "cuda_graph_cache_size": "there is no GPU",
    "cuda_graph_mode": "there is no GPU",
    "decoding_mode": "each request sets how it is searched or sampled",
    "enable_context_fmha_fp32_acc": "there is no GPU",
    "enable_trt_overlap": "there is no GPU",
    "executor_worker_path": "the executor runs in this process",
    "gpt_model_path": "the decoder lies in the version's directory",
    "gpu_device_ids": "there is no GPU",
    "gpu_weights_percent": "there is no GPU",
    "iter_stats_max_iterations": "statistics become metrics",
    "kv_cache_free_gpu_mem_fraction": "there is no GPU: see max_tokens_in_paged_kv_cache",
    "kv_cache_onboard_blocks": "the cache has one level",
    "lora_cache_gpu_memory_fraction": "there is no GPU: see lora_cache_host_memory_bytes",
    "lora_cache_optimal_adapter_size": "adapters are kept as large as they are",
    "multi_block_mode": "there is no GPU",
    "num_nodes": "a model runs in one process",
    "participant_ids": "a model runs in one process",
    "request_stats_max_iterations": "statistics become metrics",
    "speculative_decoding_fast_logits": "draft models run in the same process",
    "stats_check_period_ms": "it is 100",
    "tokenizer_dir": "the tokenizer lies in the version's directory",
    "xgrammar_tokenizer_info_path": "the tokenizer has it",
}

#: Those that would change what is answered, and cannot be followed.
_REFUSED: Final = {
    "cross_kv_cache_fraction": "models have no encoder",
    "eagle_choices": "there are draft models (speculative_model_dir) and lookahead",
    "encoder_model_path": "models have no encoder",
    "max_attention_window_size": "the window is the model's own",
    "medusa_choices": "there are draft models (speculative_model_dir) and lookahead",
    "sink_token_length": "the window is the model's own",
}

#: Agents note in such parameters what they did to the model; the backend has no use for them.
_OF_AGENTS: Final = "repoagent_"


class Parameters:
    """What a configuration sets. A value that is empty, or a ``${placeholder}`` of a template, is not set."""

    def __init__(self, config: "ModelConfig") -> None:
        self._model = config.name
        self._values: dict[str, str] = {}
        for key, value in config.parameters.items():
            text: str = value.string_value
            if text and not (text.startswith("${") and text.endswith("}")):
                self._values[key] = text
        self._read: set[str] = set()

    def text(self, key: str) -> str | None:
        """The parameter as it is written."""
        self._read.add(key)
        return self._values.get(key)

    def number(self, key: str) -> int | None:
        """The parameter as a whole number.

        Raises:
            InvalidArgumentError: it is none.
        """
        text = self.text(key)
        try:
            return None if text is None else int(text)
        except ValueError:
            raise InvalidArgumentError(f"parameter '{key}' must be a whole number, not '{text}'") from None

    def truth(self, key: str, default: bool) -> bool:
        """The parameter as a truth value.

        Raises:
            InvalidArgumentError: it is none.
        """
        text = self.text(key)
        if text is None:
            return default
        if text.lower() not in _TRUE | _FALSE:
            raise InvalidArgumentError(f"parameter '{key}' must be true or false, not '{text}'")
        return text.lower() in _TRUE

    def check_rest(self) -> None:
        """Refuse what would change answers unasked, and log the others.

        Raises:
            UnsupportedError: there is such a parameter.
        """
        for key in self._values.keys() - self._read:
            if key.startswith(_OF_AGENTS):
                continue
            if key in _REFUSED:
                raise UnsupportedError(f"parameter '{key}' is not supported: {_REFUSED[key]}")
            hint = f": {_MEANINGLESS[key]}" if key in _MEANINGLESS else did_you_mean(key, self._read)
            logger.warning("model '%s': backend 'llm' does not go by parameter '%s'%s", self._model, key, hint)
