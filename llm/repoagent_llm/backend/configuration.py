"""From the parameters of a model to the configuration of its executor; the names are those of tensorrtllm_backend."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from repoagent.errors import InvalidArgumentError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.storage.paths.names import join_inside
from repoagent_llm import (
    BatchingType,
    CapacitySchedulerPolicy,
    DecodingConfig,
    DraftTargetDecodingConfig,
    ExecutorConfig,
    GuidedDecodingConfig,
    KvCacheConfig,
    LookaheadDecodingConfig,
    PeftCacheConfig,
    RunnerOptions,
    SchedulerConfig,
    Turns,
)
from repoagent_llm.backend.config_parameters import Parameters
from repoagent_llm.backend.tokenizing import Tokenizer

__all__ = ["executor_config"]

_SPINNING: Final = "session.intra_op.allow_spinning"
_THREADS: Final = "intra_op_thread_count"
_TURNS: Final = Turns()
"""Of all models of this process that have the cores to themselves, one at a time."""


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
) -> ExecutorConfig:
    """The executor's configuration. ``folder`` is where relative paths begin.

    ``models_at_once``: how many models have a share of the cores each; None: each has all of them, in turns.
    ``own_weights``: the folder goes when it is loaded. ``run_options``: of all that its models run.

    Raises:
        InvalidArgumentError: a parameter has no sensible value.
        UnsafePathError: a path leads out of the folder.
    """
    config = ExecutorConfig(
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
        guided_decoding_config=_guidance(parameters, tokenizer, vocab_size, end_ids),
    )
    # Three that only executors of this project have: attributes, as the reference says.
    options = _runner(parameters, models_at_once)
    most = limits.decoder_graph_bytes
    options = replace(options, own_weights=own_weights, max_graph_bytes=most, run_options=run_options)
    vars(config)["runner_options"] = options
    if models_at_once is None and parameters.number(_THREADS) is None:
        vars(config)["turns"] = _TURNS
    if (draft := parameters.text("speculative_model_dir")) is not None:
        length = _or(parameters.number("max_draft_len"), 3)
        vars(config)["speculative_config"] = DraftTargetDecodingConfig(length, join_inside(folder, draft))
    return config


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
    prefetched = parameters.text("lora_prefetch_dir")
    return PeftCacheConfig(
        max_adapter_size=_or(parameters.number("lora_cache_max_adapter_size"), 64),
        host_cache_size=parameters.number("lora_cache_host_memory_bytes"),
        lora_prefetch_dir=None if prefetched is None else str(join_inside(folder, prefetched)),
    )


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


def _runner(parameters: Parameters, models_at_once: int | None) -> RunnerOptions:
    """Threads that busy-wait take the cores of others. Where models take turns, they do so only while a step runs."""
    share = max(1, len(os.sched_getaffinity(0)) // (models_at_once or 1))
    return RunnerOptions(
        threads=_or(parameters.number(_THREADS), share),
        spinning=parameters.truth(_SPINNING, models_at_once in (None, 1)),
        yielding=models_at_once is None and parameters.text(_SPINNING) is None,
        max_seq_len=parameters.number("max_seq_len"),
        lora=parameters.truth("lora", False),
    )
