"""From the parameters of a model to the configuration of its executor; the names are those of tensorrtllm_backend."""

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from repoagent import turns
from repoagent.errors import InvalidArgumentError, UnsupportedError, did_you_mean
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.storage.paths.names import join_inside
from repoagent_llm import (
    AdditionalModelOutput,
    BatchingType,
    CapacitySchedulerPolicy,
    DecodingConfig,
    DraftTargetDecodingConfig,
    EngineConfig,
    GuidedDecodingConfig,
    KvCacheConfig,
    LookaheadDecodingConfig,
    PeftCacheConfig,
    RunnerOptions,
    SchedulerConfig,
)
from repoagent_llm.backend.tensors import POOLING, is_set
from repoagent_llm.backend.tokenizing import Tokenizer
from repoagent_llm.engine.pooling import HIDDEN, POOLINGS
from repoagent_llm.lora.peft import PEFT_CONFIG

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

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
            if is_set(text):
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


ADAPTERS: Final = "adapters"
"""The folder of a version that has adapters."""
_SPINNING: Final = "session.intra_op.allow_spinning"
_THREADS: Final = "intra_op_thread_count"


def executor_config(
    parameters: Parameters,
    folder: Path,
    tokenizer: Tokenizer,
    *,
    vocab_size: int,
    end_ids: tuple[int, ...],
    models_at_once: int | None = None,
    own_weights: bool = False,
    run_options: Any = None,
    limits: Limits = DEFAULT_LIMITS,
) -> EngineConfig:
    """The executor's configuration. ``folder`` is where relative paths begin.

    ``models_at_once``: how many models have a share of the cores each; None: each has all of them, in turns.
    ``own_weights``: the folder goes when it is loaded. ``run_options``: of all that its models run.

    Raises:
        InvalidArgumentError: a parameter has no sensible value.
        UnsafePathError: a path leads out of the folder.
    """
    options = replace(
        _runner(parameters, folder, models_at_once),
        own_weights=own_weights,
        max_graph_bytes=limits.decoder_graph_bytes,
        run_options=run_options,
    )
    gap = parameters.number("token_gap_ms")
    return EngineConfig(
        max_beam_width=_or(parameters.number("max_beam_width"), 1),
        scheduler_config=SchedulerConfig(_policy(parameters)),
        kv_cache_config=KvCacheConfig(
            enable_block_reuse=parameters.truth("enable_kv_cache_reuse", True),
            max_tokens=parameters.number("max_tokens_in_paged_kv_cache"),
            host_cache_size=parameters.number("kv_cache_host_memory_bytes"),
        ),
        enable_chunked_context=parameters.truth("enable_chunked_context", True),
        normalize_log_probs=parameters.truth("normalize_log_probs", True),
        iter_stats_max_iterations=1,
        batching_type=_batching(parameters),
        max_batch_size=parameters.number("max_batch_size"),
        max_num_tokens=parameters.number("max_num_tokens"),
        max_queue_size=parameters.number("max_queue_size"),
        peft_cache_config=_adapters(parameters, folder),
        decoding_config=_lookahead(parameters),
        additional_model_outputs=None if _pooling(parameters) is None else [AdditionalModelOutput(HIDDEN)],
        guided_decoding_config=_guidance(parameters, tokenizer, vocab_size, end_ids),
        runner_options=options,
        speculative_config=_draft_model(parameters, folder),
        turns=turns.PROCESS if models_at_once is None and parameters.number(_THREADS) is None else None,
        answer_ngrams=parameters.number("answer_ngrams"),
        token_gap_seconds=None if gap is None else gap / 1000,
    )


def _draft_model(parameters: Parameters, folder: Path) -> DraftTargetDecodingConfig | None:
    draft = parameters.text("speculative_model_dir")
    if draft is None:
        return None
    length = _or(parameters.number("max_draft_len"), 3)
    return DraftTargetDecodingConfig(length, join_inside(folder, draft), parameters.number("max_draft_concurrency"))


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _policy(parameters: Parameters) -> CapacitySchedulerPolicy:
    name = parameters.text("batch_scheduler_policy") or "guaranteed_no_evict"
    known = CapacitySchedulerPolicy.__members__
    if name.upper() not in known:
        names = ", ".join(map(str.lower, known))
        raise InvalidArgumentError(f"parameter 'batch_scheduler_policy' must be one of {names}, not '{name}'")
    return known[name.upper()]


def _batching(parameters: Parameters) -> BatchingType:
    """``V1`` is the old way to batch, which the executor refuses by name."""
    name = parameters.text("gpt_model_type") or ""
    return BatchingType.STATIC if name.lower() == "v1" else BatchingType.INFLIGHT


def _adapters(parameters: Parameters, folder: Path) -> PeftCacheConfig:
    prefetched = adapter_folder(parameters, folder)
    return PeftCacheConfig(
        max_adapter_size=_or(parameters.number("lora_cache_max_adapter_size"), 64),
        host_cache_size=parameters.number("lora_cache_host_memory_bytes"),
        lora_prefetch_dir=None if prefetched is None else str(prefetched),
    )


def adapter_folder(parameters: Parameters, folder: Path) -> Path | None:
    """Where the adapters of a model lie: in ``adapters`` of its version, unless the configuration names a folder."""
    named = parameters.text("lora_prefetch_dir")
    if named is None:
        return folder / ADAPTERS if (folder / ADAPTERS).is_dir() else None
    return join_inside(folder, named)


def named_adapters(parameters: Parameters, folder: Path) -> frozenset[str]:
    """Those that requests may name: all that PEFT saved there, or those of the parameter ``lora_adapters``."""
    place, wanted = adapter_folder(parameters, folder), parameters.text("lora_adapters")
    found = {} if place is None else {path.name for path in place.iterdir() if (path / PEFT_CONFIG).is_file()}
    if wanted is None:
        return frozenset(found)
    listed = {name.strip() for name in wanted.split(",") if name.strip()}
    if missing := sorted(listed.difference(found)):
        raise InvalidArgumentError(f"parameter 'lora_adapters' names '{missing[0]}', which is not in {ADAPTERS}/")
    return frozenset(listed)


def _pooling(parameters: Parameters) -> str | None:
    name = parameters.text(POOLING)
    if name is not None and name not in POOLINGS:
        raise InvalidArgumentError(f"parameter '{POOLING}' must be one of {', '.join(POOLINGS)}, not '{name}'")
    return name


def _lookahead(parameters: Parameters) -> DecodingConfig | None:
    names = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
    sizes = [size for name in names if (size := parameters.number(name)) is not None]
    if not sizes:
        return None
    if len(sizes) < len(names):
        raise InvalidArgumentError(f"parameters {', '.join(names)} must be set together")
    return DecodingConfig(lookahead_decoding_config=LookaheadDecodingConfig(*sizes))


def _guidance(
    parameters: Parameters, tokenizer: Tokenizer, vocab_size: int, end_ids: tuple[int, ...]
) -> GuidedDecodingConfig | None:
    name = parameters.text("guided_decoding_backend")
    if name is None:
        return None
    known = GuidedDecodingConfig.GuidedDecodingBackend.__members__
    if name.upper() not in known:
        names = ", ".join(map(str.lower, known))
        raise InvalidArgumentError(f"parameter 'guided_decoding_backend' must be one of {names}, not '{name}'")
    return GuidedDecodingConfig(
        known[name.upper()], tokenizer.vocabulary(vocab_size), tokenizer.to_json(), list(end_ids) or None
    )


def _runner(parameters: Parameters, folder: Path, models_at_once: int | None) -> RunnerOptions:
    """Threads that busy-wait take the cores of others. Where models take turns, they do so only while a step runs."""
    share = max(1, len(os.sched_getaffinity(0)) // (models_at_once or 1))
    return RunnerOptions(
        threads=_or(parameters.number(_THREADS), share),
        spinning=parameters.truth(_SPINNING, models_at_once in (None, 1)),
        yielding=models_at_once is None and parameters.text(_SPINNING) is None,
        max_seq_len=parameters.number("max_seq_len"),
        lora=parameters.truth("lora", adapter_folder(parameters, folder) is not None),
        cache_type=parameters.text("kv_cache_type"),
        exact=parameters.truth("exact", True),
    )
