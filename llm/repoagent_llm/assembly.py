"""Puts an engine together from a runner and an ExecutorConfig."""

import time
from dataclasses import dataclass

from repoagent_llm.draft_target import check_vocabularies, speculation_of
from repoagent_llm.engine.blocks import BLOCK_TOKENS, BlockBudget, blocks_for
from repoagent_llm.engine.debug_tensors import DebugTensors
from repoagent_llm.engine.draft_model import DraftModel
from repoagent_llm.engine.drafting import Drafting
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
from repoagent_llm.engine.turns import Seat, Turns
from repoagent_llm.guidance import create_guides
from repoagent_llm.lora.cache import AdapterCache
from repoagent_llm.runner.protocol import ModelRunner, RunnerInfo
from repoagent_llm.types.cache_config import PeftCacheConfig
from repoagent_llm.types.enums import ContextChunkingPolicy
from repoagent_llm.types.errors import CheckError
from repoagent_llm.types.executor_config import ExecutorConfig

__all__ = ["Assembly", "assemble"]

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
    budget: BlockBudget
    events: KVCacheEventManager | None
    debug: DebugTensors
    adapters: AdapterCache | None


def assemble(runner: ModelRunner, config: ExecutorConfig, draft_runner: ModelRunner | None = None) -> Assembly:
    """All parts, not started."""
    info = runner.info
    if config.max_beam_width > info.max_sequences:
        raise CheckError(
            f"ExecutorConfig.max_beam_width ({config.max_beam_width}) is more than the runner's sequences "
            f"({info.max_sequences})"
        )
    _check_outputs(info, config)
    blocks = _blocks(info, config)
    events = _event_manager(info, config)
    sink = KvEventSink(events)
    pages = _pool_pages(info, config, blocks)
    sink.created(blocks, pages)
    partial = config.kv_cache_config.enable_partial_reuse
    pool = PrefixPool(pages, time.monotonic, partial=partial, events=sink) if pages else None
    budget, cache = BlockBudget(blocks), SequenceCache(runner, pool)
    limits = _limits(info, config)
    scheduler = Scheduler(limits, budget, cache)
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
    intake = Intake(info, config, Capacity(info.max_sequences, blocks, whole), guides, adapters)
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
        Drafting(runner, _draft_model(info, config, draft_runner)),
        _seat(info, config),
    )
    return Assembly(engine, inbox, board, intake, scheduler, stats, budget, events, debug, adapters)


def _seat(info: RunnerInfo, config: ExecutorConfig) -> Seat | None:
    """Among executors that share the processor's cores, if ``config.turns`` was set; a GPU's do not."""
    turns = getattr(config, "turns", None)
    if turns is None or info.device != "cpu":
        return None
    if not isinstance(turns, Turns):
        raise TypeError(f"ExecutorConfig.turns must be Turns, not {type(turns).__name__}")
    return turns.seat()


def _check_outputs(info: RunnerInfo, config: ExecutorConfig) -> None:
    for wanted in config.additional_model_outputs or ():
        if wanted.name not in info.extra_outputs:
            raise CheckError(
                f"ExecutorConfig.additional_model_outputs: {wanted.name!r} is not an output of the runner "
                f"({', '.join(info.extra_outputs) or 'it has none'})"
            )


def _limits(info: RunnerInfo, config: ExecutorConfig) -> Limits:
    scheduling = config.scheduler_config
    most = config.max_num_tokens or info.max_step_tokens or _TOKENS
    generating = min(most, _tokens_generating(config))
    return Limits(
        policy=scheduling.capacity_scheduler_policy,
        chunking=scheduling.context_chunking_policy or ContextChunkingPolicy.FIRST_COME_FIRST_SERVED,
        chunked=config.enable_chunked_context,
        max_requests=min(config.max_batch_size or info.max_sequences, info.max_sequences),
        max_sequences=info.max_sequences,
        max_tokens=most,
        max_tokens_generating=generating,
        max_tokens_contended=min(most, max(generating, _TOKENS_CONTENDED)),
        beginners_wait=config.max_num_tokens is None and getattr(config, "max_num_tokens_generating", None) is None,
    )


def _tokens_generating(config: ExecutorConfig) -> int:
    """``config.max_num_tokens_generating`` where it was set; else ``max_num_tokens``, else the default."""
    wanted = getattr(config, "max_num_tokens_generating", None)
    if wanted is None:
        return config.max_num_tokens or _TOKENS_GENERATING
    if type(wanted) is not int or wanted < 1:
        raise CheckError(f"ExecutorConfig.max_num_tokens_generating must be an integer > 0, not {wanted!r}")
    return wanted


def _blocks(info: RunnerInfo, config: ExecutorConfig) -> int:
    most = info.max_sequences * blocks_for(info.max_seq_len)
    wanted = config.kv_cache_config.max_tokens
    return most if wanted is None else min(most, max(1, wanted // BLOCK_TOKENS))


def _pool_pages(info: RunnerInfo, config: ExecutorConfig, blocks: int) -> int:
    """Retained pages: ``host_cache_size`` bytes of them, or as many as the cache has blocks."""
    cache = config.kv_cache_config
    if not cache.enable_block_reuse:
        return 0
    if cache.host_cache_size is None:
        return blocks
    return int(cache.host_cache_size // (info.kv_bytes_per_token * BLOCK_TOKENS))


def _adapters(info: RunnerInfo, config: ExecutorConfig) -> AdapterCache | None:
    if info.lora is None:
        return None
    return AdapterCache(config.peft_cache_config or PeftCacheConfig(), info.lora, info.dtype)


def _draft_model(info: RunnerInfo, config: ExecutorConfig, runner: ModelRunner | None) -> DraftModel | None:
    wanted = speculation_of(config)
    if runner is None:
        return None
    if wanted is None:
        raise CheckError("a draft runner needs ExecutorConfig.speculative_config, a DraftTargetDecodingConfig")
    check_vocabularies(info.vocab_size, "the draft model", runner.info.vocab_size)
    return DraftModel(runner, wanted.max_draft_len, min(wanted.max_concurrency, runner.info.max_sequences))


def _event_manager(info: RunnerInfo, config: ExecutorConfig) -> KVCacheEventManager | None:
    size = config.kv_cache_config.event_buffer_max_size
    return KVCacheEventManager(size, info.max_seq_len) if size else None
