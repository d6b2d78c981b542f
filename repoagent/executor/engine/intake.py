"""From requests to tasks: what an executor cannot do is refused here, by name."""

import time
from copy import copy
from dataclasses import dataclass

import numpy as np

from repoagent.executor.engine.beam_group import BeamGroup
from repoagent.executor.engine.blocks import blocks_for
from repoagent.executor.engine.checks import check_draft_logits, check_sampling, check_tokens
from repoagent.executor.engine.choice import MOST_DRAWN
from repoagent.executor.engine.drawing_graph import Way, drawing_session
from repoagent.executor.engine.guide import GuideFactory
from repoagent.executor.engine.logits import LogitsRules
from repoagent.executor.engine.lookahead import Lookahead
from repoagent.executor.engine.prefix import PrefixKey
from repoagent.executor.engine.prompt_table import PromptTable, check_prompt_table
from repoagent.executor.engine.sampler import Sampler
from repoagent.executor.engine.sampling_group import SamplingGroup
from repoagent.executor.engine.task import Group, Task, TaskTimes
from repoagent.executor.engine.token_sequence import TokenSequence
from repoagent.executor.lora.cache import AdapterCache, AdapterLease
from repoagent.executor.runner.protocol import RunnerInfo
from repoagent.executor.types.decoding_config import LogitsPostProcessorConfig
from repoagent.executor.types.endings import Endings
from repoagent.executor.types.enums import KvCacheTransferMode, RequestType
from repoagent.executor.types.errors import CheckError, UnsupportedFeatureError
from repoagent.executor.types.executor_config import ExecutorConfig
from repoagent.executor.types.request import Request, extras_of
from repoagent.executor.types.rules import tokens

__all__ = ["Intake"]

# Properties of a request that need a model or a machine that no runner here has.
_UNSUPPORTED = (
    "position_ids",
    "multimodal_input",
    "multimodal_embedding",
    "mrope_config",
    "encoder_input_token_ids",
    "context_phase_params",
    "encoder_input_features",
    "cross_attention_mask",
    "eagle_config",
    "skip_cross_attn_blocks",
)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one request may need at most."""

    sequences: int
    blocks: int
    prompt_tokens: int | None


class Intake:
    """Checks requests and makes tasks of them. Raises ``CheckError`` or ``UnsupportedFeatureError``."""

    def __init__(
        self,
        info: RunnerInfo,
        config: ExecutorConfig,
        capacity: Capacity,
        guides: GuideFactory | None,
        adapters: AdapterCache | None = None,
    ) -> None:
        self._info = info
        self._config = config
        self._processors = config.logits_post_processor_config or LogitsPostProcessorConfig()
        self._named = tuple(self._processors.processor_map or ())  # those that there are from the start
        self._capacity = capacity
        self._guides = guides
        self._adapters = adapters

    def task(self, request: Request, request_id: int) -> Task:
        """The task of a request; what it needs is checked against this executor.

        The caller may change the request afterwards and send it again: the task has a copy of its own.
        """
        request = _own(request)
        max_new_tokens, table = self._check(request)
        endings = _endings(request)
        rules = self._rules(request, endings)
        drafts = self._drafts(request, max_new_tokens)
        group = self._group(request)
        now = time.monotonic()
        allotted = request.allotted_time_ms
        wanted = request.output_config
        extras = wanted.additional_model_outputs or ()
        lease = self._lease(request)  # last of all: from here on nothing may fail that does not give it back
        task = Task(
            id=request_id,
            request=request,
            priority=extras_of(request).priority,
            times=TaskTimes(now),
            group=group,
            rules=rules,
            max_new_tokens=max_new_tokens,
            end_ids=_end_ids(request, endings),
            deadline=None if allotted is None else now + allotted.total_seconds(),
            want_log_probs=bool(wanted.return_log_probs),
            alternatives=_alternatives(request),
            extra_names=tuple(extra.name for extra in extras),
            context_extra_names=frozenset(extra.name for extra in extras if extra.gather_context),
            drafts=drafts,
            key=_prefix_key(request, lease),
            lease=lease,
            table=table,
            extra_ids=_extra_ids(request),
        )
        _take_draft_logits(task)
        self._choose_ways(task)
        return task

    def _check(self, request: Request) -> tuple[int, PromptTable | None]:
        """Refuse what cannot be done; how many tokens may be made, and the rows of the prompt's own tokens."""
        _check_supported(request)
        check_sampling(request.sampling_config, self._info.max_seq_len)
        self._check_beams(request)
        self._check_outputs(request)
        self._check_lookahead(request)
        length = len(request.input_token_ids)
        longest = self._check_length(request, length)
        table = check_prompt_table(request, self._info, reuse=self._config.kv_cache_config.enable_block_reuse)
        check_tokens(request, self._info.vocab_size, 0 if table is None else len(table.rows))
        return min(request.max_tokens, longest - length), table

    def _rules(self, request: Request, endings: Endings) -> LogitsRules:
        rules = LogitsRules.of(request)
        rules.stop_ids = frozenset((*endings.end_ids, *endings.stop_ids))
        if self._guides is not None and request.guided_decoding_params is not None:
            rules.stop_ids |= self._guides.stop_ids
        return rules

    def _choose_ways(self, task: Task) -> None:
        """Note which of the engine's shorter ways ``task`` may take."""
        group = task.group
        task.draftable = _is_draftable(task)
        task.lookahead = self._lookahead(task)
        one = isinstance(group, SamplingGroup) and group.width == 1
        task.steady = one and not (task.lookahead or task.extra_names)
        if _needs_no_logits(task):
            sampler = group.sequences[0].sampler
            task.plain = sampler.greedy and not task.rules.active
            task.drawn = sampler.simple and sampler.top_k <= min(MOST_DRAWN, self._info.vocab_size - 1)
            if task.drawn:
                self._prepare_drawing(sampler)
        task.streams_tokens = _streams_tokens(task)

    def _prepare_drawing(self, sampler: Sampler) -> None:
        """Make the sessions that draw tokens here, so that the engine's thread does not wait for them."""
        for way in [Way.TOP_K] if sampler.top_k else [Way.TOP_P, Way.TOP_P_AGAIN]:
            drawing_session(self._info.vocab_size, way)

    def _lookahead(self, task: Task) -> Lookahead | None:
        """The drafter of a request, where its tokens can be drafted: one sequence, searched greedily."""
        decoding = self._config.decoding_config
        config = task.request.lookahead_config or (decoding and decoding.lookahead_decoding_config)
        if not config or config.max_ngram_size < 2 or not task.draftable:
            return None
        if not task.group.sequences[0].sampler.greedy:
            return None
        return Lookahead(config.max_ngram_size, config.max_verification_set_size)

    def _check_lookahead(self, request: Request) -> None:
        """A request may make the executor's sizes smaller."""
        wanted = request.lookahead_config
        if wanted is None:
            return
        decoding = self._config.decoding_config
        most = None if decoding is None else decoding.lookahead_decoding_config
        if most is None:
            raise CheckError("Request.lookahead_config needs an executor with DecodingConfig.lookahead_decoding_config")
        for name in ("max_window_size", "max_ngram_size", "max_verification_set_size"):
            if getattr(wanted, name) > getattr(most, name):
                raise CheckError(
                    f"Request.lookahead_config: {name} {getattr(wanted, name)} is more than the executor's "
                    f"({getattr(most, name)})"
                )

    def _group(self, request: Request) -> Group:
        config = request.sampling_config
        guide = None
        if request.guided_decoding_params is not None:
            if self._guides is None:
                raise CheckError(
                    "the request wants guided decoding, but ExecutorConfig.guided_decoding_config is not set"
                )
            guide = self._guides.create(request.guided_decoding_params)
        prompt = list(request.input_token_ids)
        first = TokenSequence(0, prompt, len(prompt), Sampler(config), guide=guide)
        if config.beam_width > 1:
            return BeamGroup(first, config, _returned_beams(request))
        return SamplingGroup(first, [Sampler(config, index) for index in range(_sequences(request))])

    def _lease(self, request: Request) -> AdapterLease | None:
        if request.lora_config is None:
            return None
        if self._adapters is None:
            raise UnsupportedFeatureError(
                "Request.lora_config",
                "the model takes no adapters; build it with lora=True, or set RunnerOptions.lora",
            )
        return self._adapters.lease(request.lora_config)

    def _check_beams(self, request: Request) -> None:
        config = request.sampling_config
        if config.beam_width > self._config.max_beam_width:
            raise CheckError(
                f"beam_width {config.beam_width} is more than ExecutorConfig.max_beam_width "
                f"({self._config.max_beam_width})"
            )
        if config.beam_width > 1 and request.guided_decoding_params is not None:
            raise CheckError("guided decoding is not possible with beam search (beam_width > 1)")
        if config.beam_width > 1 and request.external_draft_tokens_config is not None:
            raise CheckError("external draft tokens are not possible with beam search (beam_width > 1)")
        if config.beam_width > 1 and _returned_beams(request) > config.beam_width:
            raise CheckError(
                f"num_return_sequences must be <= beam_width ({config.beam_width}), not {_returned_beams(request)}"
            )
        rows = max(config.beam_width, _sequences(request))
        if rows > self._capacity.sequences:
            raise CheckError(
                f"the request needs {rows} sequences at once; this executor has {self._capacity.sequences}"
            )

    def _check_outputs(self, request: Request) -> None:
        wanted = request.output_config
        if wanted.return_encoder_output:
            raise UnsupportedFeatureError("OutputConfig.return_encoder_output", "the model has no encoder")
        for extra in wanted.additional_model_outputs or ():
            if extra.name not in self._info.extra_outputs:
                raise CheckError(
                    f"additional output {extra.name!r} is not among ExecutorConfig.additional_model_outputs "
                    f"({', '.join(self._info.extra_outputs) or 'none'})"
                )
        name = request.logits_post_processor_name
        if name == Request.BATCHED_POST_PROCESSOR_NAME:
            if self._processors.processor_batched is None:
                raise CheckError("the batched logits post-processor is asked for, but processor_batched is not set")
        elif name is not None and name not in self._named:
            known = ", ".join(self._named) or "none"
            raise CheckError(f"logits post-processor {name!r} is not in LogitsPostProcessorConfig (known: {known})")

    def _check_length(self, request: Request, length: int) -> int:
        """How many tokens the request's sequences may hold."""
        limit = self._info.max_seq_len
        if length >= limit:
            raise CheckError(
                f"Prompt length ({length}) must be less than the maximum sequence length ({limit}), which "
                "max_seq_len sets"
            )
        whole = self._capacity.prompt_tokens
        if whole is not None and length > whole:
            raise CheckError(
                f"Prompt length ({length}) exceeds max_num_tokens ({whole}); set ExecutorConfig.enable_chunked_context"
            )
        width = max(request.sampling_config.beam_width, _sequences(request))
        per_sequence = self._capacity.blocks // max(1, width)
        if blocks_for(length + 1) > per_sequence:
            raise CheckError(
                f"the request needs {width * blocks_for(length + 1)} KV blocks at least; "
                f"this executor has {self._capacity.blocks}"
            )
        return min(limit, per_sequence * 32)

    def _drafts(self, request: Request, max_new_tokens: int) -> list[int]:
        config = request.external_draft_tokens_config
        if config is None:
            return []
        if config.fast_logits:
            raise UnsupportedFeatureError(
                "ExternalDraftTokensConfig.fast_logits", "give the draft's logits with the request"
            )
        if config.logits is not None:
            check_draft_logits(config.logits, self._info.vocab_size)
        wrong = next((token for token in config.tokens if not 0 <= token < self._info.vocab_size), None)
        if wrong is not None:  # the graph would fail, and with it every request of the iteration
            raise CheckError(f"draft token {wrong} is not in the vocabulary of {self._info.vocab_size} tokens")
        if _sequences(request) > 1:
            raise CheckError("external draft tokens are not possible with several returned sequences")
        if request.logits_post_processor is not None or request.logits_post_processor_name is not None:
            raise CheckError("external draft tokens are not possible with a logits post-processor")
        return config.tokens[: max_new_tokens - 1]


def _take_draft_logits(task: Task) -> None:
    """The logits that came with external draft tokens, at the request's temperature."""
    external = task.request.external_draft_tokens_config
    if external is not None and external.logits is not None:
        task.draft_logits = np.asarray(external.logits, np.float32) / np.float32(task.rules.temperature)
        task.draft_threshold = external.acceptance_threshold


def _own(request: Request) -> Request:
    """A copy with lists of its own; what was put into the caller's is checked once more. Tensors stay the caller's."""
    own = copy(request)
    own.output_config = copy(request.output_config)
    vars(own)["input_token_ids"] = tokens(request.input_token_ids, "Request.input_token_ids")
    own.bad_words = request.bad_words
    own.stop_words = [*(request.stop_words or ()), *([token] for token in _endings(request).stop_ids)] or None
    return own


def _endings(request: Request) -> Endings:
    """Those that were set beside the one that a request itself has."""
    endings = getattr(request, "endings", None) or Endings()
    if not isinstance(endings, Endings):
        raise TypeError(f"Request.endings must be Endings, not {type(endings).__name__}")
    return endings


def _alternatives(request: Request) -> int | None:
    """How many of the likeliest tokens the request wants with each: an attribute that only requests here have."""
    wanted = getattr(request, "top_log_probs", None)
    if wanted is None:
        return None
    if type(wanted) is not int or wanted < 0:
        raise CheckError(f"Request.top_log_probs must be a whole number from 0 on, not {wanted!r}")
    return wanted


def _end_ids(request: Request, endings: Endings) -> frozenset[int]:
    return frozenset(endings.end_ids) | (frozenset() if request.end_id is None else {request.end_id})


def _needs_no_logits(task: Task) -> bool:
    """Whether the next token is all that is wanted of a row of logits, and nothing but a temperature changes it."""
    request, wanted = task.request, task.request.output_config
    return (
        task.steady
        and task.rules.only_temperature
        and task.group.sequences[0].guide is None
        and not (task.want_log_probs or task.drafts)
        and not (wanted.return_generation_logits or wanted.return_context_logits)
        and request.logits_post_processor is None
        and request.logits_post_processor_name is None
    )


def _is_draftable(task: Task) -> bool:
    """Whether what follows can be guessed: one sequence of ordinary tokens, chosen by no one else."""
    request, group = task.request, task.group
    by_others = (
        request.logits_post_processor,
        request.logits_post_processor_name,
        request.external_draft_tokens_config,
        request.prompt_tuning_config,
    )
    return group.width == 1 and not group.together and all(other is None for other in by_others)


def _streams_tokens(task: Task) -> bool:
    request, wanted = task.request, task.request.output_config
    more = (
        wanted.return_log_probs,
        wanted.return_context_logits,
        wanted.return_generation_logits,
        wanted.return_perf_metrics,
        wanted.additional_model_outputs,
        request.return_all_generated_tokens,
        request.external_draft_tokens_config,
    )
    return request.streaming and isinstance(task.group, SamplingGroup) and task.group.width == 1 and not any(more)


def _extra_ids(request: Request) -> list[int]:
    config = request.prompt_tuning_config
    return [] if config is None else config.input_token_extra_ids or []


def _prefix_key(request: Request, lease: AdapterLease | None) -> PrefixKey:
    if lease is None:
        return PrefixKey(None, request.cache_salt_id)
    return PrefixKey(lease.adapter.task_id, request.cache_salt_id, lease.adapter.digest)


def _returned_beams(request: Request) -> int:
    """How many of the beams come back: all, unless the request or its sampling configuration sets how many."""
    return _wanted_sequences(request) or request.sampling_config.beam_width


def _sequences(request: Request) -> int:
    """How many sequences are sampled; beams are counted apart."""
    return 1 if request.sampling_config.beam_width > 1 else _wanted_sequences(request) or 1


def _wanted_sequences(request: Request) -> int | None:
    """Where a request says it itself, its sampling configuration does not matter."""
    wanted = extras_of(request).num_return_sequences
    return wanted if wanted > 1 else request.sampling_config.num_return_sequences


def _check_supported(request: Request) -> None:
    for name in _UNSUPPORTED:
        if getattr(request, name) is not None:
            raise UnsupportedFeatureError(f"Request.{name}")
    retention = request.kv_cache_retention_config
    if retention is not None and (retention.transfer_mode is not KvCacheTransferMode.DRAM or retention.directory):
        raise UnsupportedFeatureError(
            "KvCacheRetentionConfig.transfer_mode and directory", "retained blocks lie in host memory, not in files"
        )
    if request.request_type is not RequestType.REQUEST_TYPE_CONTEXT_AND_GENERATION:
        raise UnsupportedFeatureError(f"RequestType.{request.request_type.name}", "both phases run here")
    if extras_of(request).language_adapter_uid is not None:
        raise UnsupportedFeatureError("Request.language_adapter_uid")
    if extras_of(request).encoder_output_length is not None:
        raise UnsupportedFeatureError("Request.encoder_output_length", "the model has no encoder")
