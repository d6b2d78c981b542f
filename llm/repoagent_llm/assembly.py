"""Chooses the runner of a decoder, tries it, and puts an engine together from it and an ExecutorConfig."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from repoagent.turns import Seat
from repoagent_llm.engine.block_files import BlockFiles
from repoagent_llm.engine.block_store import BlockStore
from repoagent_llm.engine.blocks import BlockBudget, Budget, PageBudget
from repoagent_llm.engine.debug_tensors import DebugTensors, graph_tensors
from repoagent_llm.engine.drafting import Drafting, DraftModel
from repoagent_llm.engine.engine import Engine
from repoagent_llm.engine.inbox import Inbox
from repoagent_llm.engine.intake import Intake
from repoagent_llm.engine.iteration_stats import StatsKeeper
from repoagent_llm.engine.kv_event_buffer import KVCacheEventManager, KvEventSink
from repoagent_llm.engine.prefix_pool import PrefixPool
from repoagent_llm.engine.processors import PostProcessors
from repoagent_llm.engine.request_checks import Capacity
from repoagent_llm.engine.response_board import ResponseBoard
from repoagent_llm.engine.results import ResultMaker
from repoagent_llm.engine.scheduler import Limits, Scheduler
from repoagent_llm.engine.sequence_cache import SequenceCache
from repoagent_llm.engine.step_budget import StepCost
from repoagent_llm.engine.task import AnswerMemory
from repoagent_llm.engine_config import DraftTargetDecodingConfig, EngineConfig
from repoagent_llm.guidance import create_guides
from repoagent_llm.lora.cache import AdapterCache
from repoagent_llm.runner.block_pool import BLOCK_TOKENS, blocks_for
from repoagent_llm.runner.decoder_spec import DecoderSpec, read_spec
from repoagent_llm.runner.memory import sequence_length
from repoagent_llm.runner.openvino.model import open_paged
from repoagent_llm.runner.ort_forms import OrtGqaRunner, OrtStdRunner
from repoagent_llm.runner.ort_mixed import OrtMixedRunner
from repoagent_llm.runner.paged import PagedRunner
from repoagent_llm.runner.protocol import DecodeRound, Logits, ModelRunner, RunnerInfo, Segment, StepResult
from repoagent_llm.runner.runner_options import RunnerOptions
from repoagent_llm.runner.tensorrt import PLAN_SUFFIX, TensorRtRunner
from repoagent_llm.types.cache_config import PeftCacheConfig
from repoagent_llm.types.executor_errors import CheckError, DecoderError


def try_runner(runner: ModelRunner, place: str) -> None:
    """A prompt of two tokens, then a token behind it, as a request would have them; the sequence is gone afterwards.

    Raises ``DecoderError`` if either fails: a graph can be loaded and yet be none that can run. ``place``: what the
    error calls it.
    """
    try:
        _run(runner)
    except Exception as error:  # whatever a session raises
        raise DecoderError(f"{place}: the decoder cannot run one step: {error}") from error


def _run(runner: ModelRunner) -> None:
    info = runner.info
    seq = runner.open()
    if seq is None:
        raise RuntimeError("there is no free sequence")
    try:
        prompt = np.zeros(min(2, info.max_seq_len), np.int32)
        result = runner.step([Segment(seq, prompt, Logits.ALL, info.extra_outputs)])
        _check(result, len(prompt), info.vocab_size)
        for name, values in result.extras[0].items():
            if values.ndim < 1 or len(values) != len(prompt):
                raise RuntimeError(f"the output {name!r} has no value for each token")
        if len(prompt) < info.max_seq_len:
            _check(runner.step(DecodeRound.of([seq])), 1, info.vocab_size)
    finally:
        runner.free(seq)


def _check(result: StepResult, rows: int, vocab_size: int) -> None:
    if result.logits.shape != (rows, vocab_size):
        raise RuntimeError(f"the logits are {list(result.logits.shape)}, expected {[rows, vocab_size]}")


_WEIGHT_TYPES = frozenset(np.dtype(name) for name in ("float16", "float32", "int8", "int32", "int64"))


def load_runner(spec: DecoderSpec, config: EngineConfig) -> ModelRunner:
    """A runner for a decoder.

    Sizes come from ``config``: ``max_batch_size`` times ``max_beam_width`` sequences, additional outputs by name. A
    ``RunnerOptions`` set as ``config.runner_options`` states the rest (threads, sequence length).
    """
    options = config.runner_options
    if config.max_batch_size is not None:
        options = replace(options, max_sequences=config.max_batch_size * config.max_beam_width)
    else:
        options = replace(options, max_sequences=max(options.max_sequences, config.max_beam_width))
    names = (
        *(output.name for output in config.additional_model_outputs or ()),
        *graph_tensors(config.debug_config),
    )
    options = replace(options, extra_outputs=tuple(dict.fromkeys((*options.extra_outputs, *names))))
    if config.speculative_config is not None:
        options = replace(options, yielding=True)
    if spec.paged is not None:
        options = _paged_options(spec, options, config.kv_cache_config.max_tokens)
    return _open(spec, options)


def _paged_options(spec: DecoderSpec, options: RunnerOptions, max_tokens: int | None) -> RunnerOptions:
    """Blocks limit how many sequences there are, so that the rows that were asked for only size the pool."""
    length = sequence_length(spec, options, None)
    tokens = max_tokens or options.cache_tokens or options.max_sequences * length
    return replace(options, cache_tokens=tokens, max_sequences=max(options.max_sequences, _MOST_SEQUENCES))


def _open(spec: DecoderSpec, options: RunnerOptions) -> ModelRunner:
    """A runner that has run: what cannot run is refused now, not by every request."""
    try:
        runner = _make(spec, options)
    except MemoryError as error:
        raise CheckError(
            f"{spec.place}: there is not enough memory for the decoder with {options.max_sequences} sequences: lower "
            "max_batch_size, max_beam_width or max_seq_len"
        ) from error
    try:
        try_runner(runner, spec.place)
    except BaseException:
        runner.close()
        raise
    return runner


def _make(spec: DecoderSpec, options: RunnerOptions) -> ModelRunner:
    if spec.paged is not None:
        return open_paged(spec, options)
    if spec.filename.endswith(PLAN_SUFFIX):
        return TensorRtRunner(spec, options)
    if options.mixed:
        return OrtMixedRunner(spec, options)
    return (OrtStdRunner if spec.standard else OrtGqaRunner)(spec, options)


def load_draft_runner(config: EngineConfig, drafted_for: ModelRunner) -> ModelRunner | None:
    """A runner for the draft model of ``config``, if it names one."""
    wanted = config.speculative_config
    if wanted is None:
        return None
    if wanted.speculative_model_dir is None:
        raise CheckError("DraftTargetDecodingConfig.speculative_model_dir must name the draft model's folder")
    spec = read_spec(Path(wanted.speculative_model_dir))
    _check_vocabularies(drafted_for.info.vocab_size, f"the draft model {wanted.speculative_model_dir}", spec.vocab_size)
    own = config.runner_options
    options = replace(
        wanted.runner_options or own,
        max_sequences=_drafted_at_once(wanted, drafted_for),
        extra_outputs=(),
        lora=False,
        yielding=True,
        run_options=own.run_options,
        cache_tokens=None,
    )
    return _open(spec, options)


def _drafted_at_once(wanted: DraftTargetDecodingConfig, drafted_for: ModelRunner) -> int:
    """While more requests run, none is drafted for. Slabs compute rows with drafts one by one.

    On pages as many as the pool holds at full length: the draft model's cache has to hold them, too.
    """
    if wanted.max_concurrency is not None:
        return wanted.max_concurrency
    if not isinstance(drafted_for, PagedRunner):
        return 1
    return max(1, drafted_for.pool.total * BLOCK_TOKENS // drafted_for.info.max_seq_len)


def _check_vocabularies(size: int, draft_model: str, draft_size: int) -> None:
    """Raise unless both models have tokens of the same numbers."""
    if size != draft_size:
        raise CheckError(
            f"{draft_model} has a vocabulary of {draft_size} tokens, the model that it drafts for one of {size}; "
            "they must be the same"
        )


def check_managed_weights(weights: Mapping[str, Any]) -> None:
    """Raise unless every weight is an array of an element type that engines take.

    bfloat16 and float8 come as void16 and void8 with a type in the dtype's metadata.
    """
    if not isinstance(weights, Mapping):
        raise TypeError(f"managed_weights must be a mapping of names to arrays, not {type(weights).__name__}")
    for weight in weights.values():
        dtype = getattr(weight, "dtype", None)
        described = dtype is not None and dtype.kind == "V" and dtype.itemsize in (1, 2) and dtype.metadata
        if not described and dtype not in _WEIGHT_TYPES:
            raise CheckError("Unsupported numpy dtype.")


_BLOCK_FOLDER_BYTES = 1 << 30
# Of a runner whose cache consists of pages.
_MOST_SEQUENCES = 1024
# Tokens of one iteration in which running requests wait for their next token.
_TOKENS_GENERATING = 64
# Of one for whose end other executors wait that only read prompts. A run costs about as much as 16 tokens more, so that
# pieces of 64 take a quarter longer in all; these take a sixteenth longer.
_TOKENS_CONTENDED = 256
# And of one in which nothing waits but what is being read; new requests and cancellations wait for its end.
_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts that an executor talks to."""

    engine: Engine
    inbox: Inbox
    board: ResponseBoard
    intake: Intake
    scheduler: Scheduler
    stats: StatsKeeper
    budget: Budget
    events: KVCacheEventManager | None
    debug: DebugTensors
    adapters: AdapterCache | None


def assemble(runner: ModelRunner, config: EngineConfig, draft_runner: ModelRunner | None = None) -> Assembly:
    """All parts, not started."""
    info = runner.info
    if config.max_beam_width > info.max_sequences:
        raise CheckError(
            f"ExecutorConfig.max_beam_width ({config.max_beam_width}) is more than the runner's sequences "
            f"({info.max_sequences})"
        )
    _check_outputs(info, config)
    paged = runner if isinstance(runner, PagedRunner) else None
    blocks = _blocks(info, config) if paged is None else PageBudget(paged).total
    events = _event_manager(info, config)
    sink = KvEventSink(events)
    pages = _pool_pages(info, config, blocks)
    sink.created(blocks, pages)
    pool = _prefix_pool(pages, config, sink, paged) if pages else None
    budget: Budget = BlockBudget(blocks) if paged is None else PageBudget(paged)
    cache = SequenceCache(runner, pool)
    limits = _limits(info, config, paged)
    cost = StepCost()
    scheduler = Scheduler(limits, budget, cache, cost)
    stats = StatsKeeper(
        config.iter_stats_max_iterations,
        config.request_stats_max_iterations,
        max_requests=limits.max_requests,
        max_tokens=limits.max_tokens,
    )
    inbox, board = Inbox(), ResponseBoard()
    debug = DebugTensors(config.debug_config, info)
    whole = None if config.enable_chunked_context else config.max_num_tokens
    guides = create_guides(config.guided_decoding_config, info.vocab_size, info.end_ids)
    adapters = _adapters(info, config)
    intake = Intake(
        info,
        config,
        Capacity(info.max_sequences, blocks, whole, shares=limits.shares, most_blocks=limits.most_blocks),
        guides,
        adapters,
        _memory(config),
    )
    engine = Engine(
        runner,
        scheduler,
        cache,
        budget,
        ResultMaker(normalize_log_probs=config.normalize_log_probs),
        PostProcessors(config.logits_post_processor_config),
        stats,
        inbox,
        board,
        debug,
        Drafting(runner, _draft_model(runner, config, draft_runner), cost),
        cost,
        _seat(info, config),
    )
    return Assembly(engine, inbox, board, intake, scheduler, stats, budget, events, debug, adapters)


def _prefix_pool(pages: int, config: EngineConfig, sink: KvEventSink, paged: PagedRunner | None) -> PrefixPool:
    """Retained pages. Those of a paged runner are blocks of its own pool, which takes them back when it needs them."""
    partial = config.kv_cache_config.enable_partial_reuse
    if paged is None:
        return PrefixPool(pages, time.monotonic, partial=partial, events=sink)
    partial = partial and paged.divisible
    disk = _disk(paged, config)
    pool = PrefixPool(pages, time.monotonic, partial=partial, events=sink, drop=paged.drop_kv, disk=disk)
    paged.pool.reclaim = pool.reclaim
    return pool


def _disk(paged: PagedRunner, config: EngineConfig) -> BlockFiles | None:
    """Blocks in files, if ``config.block_folder`` was set; ``config.block_folder_bytes`` of them."""
    if config.block_folder is None:
        return None
    size = config.block_folder_bytes or _BLOCK_FOLDER_BYTES
    try:
        store = BlockStore(Path(config.block_folder), paged.identity, paged.block_bytes + BlockFiles.HEAD_BYTES, size)
    except OSError as error:
        raise CheckError(f"ExecutorConfig.block_folder: {error}") from error
    return BlockFiles(paged, store)


def _memory(config: EngineConfig) -> AnswerMemory | None:
    """Of earlier answers, if ``config.answer_ngrams`` was set."""
    if config.answer_ngrams is None:
        return None
    if not (config.decoding_config and config.decoding_config.lookahead_decoding_config):
        raise CheckError("ExecutorConfig.answer_ngrams needs DecodingConfig.lookahead_decoding_config")
    return AnswerMemory(config.answer_ngrams)


def _seat(info: RunnerInfo, config: EngineConfig) -> Seat | None:
    """Among executors that share the processor's cores, if ``config.turns`` was set; a GPU's do not."""
    return None if config.turns is None or info.device != "cpu" else config.turns.seat()


def _check_outputs(info: RunnerInfo, config: EngineConfig) -> None:
    for wanted in config.additional_model_outputs or ():
        if wanted.name not in info.extra_outputs:
            raise CheckError(
                f"ExecutorConfig.additional_model_outputs: {wanted.name!r} is not an output of the runner "
                f"({', '.join(info.extra_outputs) or 'it has none'})"
            )


def _limits(info: RunnerInfo, config: EngineConfig, paged: PagedRunner | None) -> Limits:
    scheduling = config.scheduler_config
    most = config.max_num_tokens or info.max_step_tokens or _TOKENS
    generating = min(most, config.max_num_tokens_generating or config.max_num_tokens or _TOKENS_GENERATING)
    window = 0 if paged is None else paged.window
    whole = not config.enable_chunked_context  # prompts are read in one piece
    return Limits(
        policy=scheduling.capacity_scheduler_policy,
        chunking=scheduling.context_chunking_policy,
        chunked=config.enable_chunked_context,
        max_requests=min(config.max_batch_size or info.max_sequences, info.max_sequences),
        max_sequences=info.max_sequences,
        max_tokens=most,
        max_tokens_generating=generating,
        max_tokens_contended=min(most, max(generating, _TOKENS_CONTENDED)),
        beginners_wait=config.max_num_tokens is None and config.max_num_tokens_generating is None,
        shares=paged is not None,
        gap_seconds=config.token_gap_seconds,
        # A piece is read with the window before it; the window may begin, and the piece end, within a block.
        most_blocks=None if whole or not window else blocks_for(window + most) + 1,
    )


def _blocks(info: RunnerInfo, config: EngineConfig) -> int:
    most = info.max_sequences * blocks_for(info.max_seq_len)
    wanted = config.kv_cache_config.max_tokens
    return most if wanted is None else min(most, max(1, wanted // BLOCK_TOKENS))


def _pool_pages(info: RunnerInfo, config: EngineConfig, blocks: int) -> int:
    """Retained pages: ``host_cache_size`` bytes of them, or as many as the cache has blocks."""
    cache = config.kv_cache_config
    if not cache.enable_block_reuse:
        return 0
    if cache.host_cache_size is None:
        return blocks
    return int(cache.host_cache_size // (info.kv_bytes_per_token * BLOCK_TOKENS))


def _adapters(info: RunnerInfo, config: EngineConfig) -> AdapterCache | None:
    if info.lora is None:
        return None
    return AdapterCache(config.peft_cache_config or PeftCacheConfig(), info.lora, info.dtype)


def _draft_model(runner: ModelRunner, config: EngineConfig, drafter: ModelRunner | None) -> DraftModel | None:
    wanted = config.speculative_config
    if drafter is None:
        return None
    if wanted is None:
        raise CheckError("a draft runner needs ExecutorConfig.speculative_config, a DraftTargetDecodingConfig")
    _check_vocabularies(runner.info.vocab_size, "the draft model", drafter.info.vocab_size)
    most = min(_drafted_at_once(wanted, runner), drafter.info.max_sequences)
    return DraftModel(drafter, wanted.max_draft_len, most)


def _event_manager(info: RunnerInfo, config: EngineConfig) -> KVCacheEventManager | None:
    size = config.kv_cache_config.event_buffer_max_size
    return KVCacheEventManager(size, info.max_seq_len) if size else None
