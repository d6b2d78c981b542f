"""From requests to tasks, and which of the engine's shorter ways a task may take."""

import time
from copy import copy

import numpy as np

from repoagent_llm.engine.batch_sampler import MOST_DRAWN
from repoagent_llm.engine.beam_group import BeamGroup
from repoagent_llm.engine.guide import GuideFactory
from repoagent_llm.engine.logits import LogitsRules
from repoagent_llm.engine.page import PrefixKey
from repoagent_llm.engine.pooling import HIDDEN, pooled
from repoagent_llm.engine.request_checks import Capacity, RequestChecks, returned_beams, sampled_sequences
from repoagent_llm.engine.sampler import Sampler
from repoagent_llm.engine.sampling_group import SamplingGroup
from repoagent_llm.engine.task import AnswerMemory, Group, Lookahead, Task, TaskTimes
from repoagent_llm.engine.token_sampling_graph import Way, drawing_session
from repoagent_llm.engine.token_sequence import TokenSequence
from repoagent_llm.lora.cache import AdapterCache, AdapterLease
from repoagent_llm.runner.protocol import RunnerInfo
from repoagent_llm.types.decoding_config import DecodingConfig
from repoagent_llm.types.executor_config import ExecutorConfig
from repoagent_llm.types.executor_errors import CheckError, UnsupportedFeatureError
from repoagent_llm.types.request import Endings, EngineRequest, LogProbs, Request, extras_of
from repoagent_llm.types.rules import tokens


def choose_shortcuts(task: Task, vocab_size: int, decoding: DecodingConfig | None) -> None:
    """Note which of the engine's shorter ways ``task`` may take; ``decoding`` is the executor's."""
    group = task.group
    task.draftable = _is_draftable(task)
    task.lookahead = _lookahead(task, decoding)
    one = isinstance(group, SamplingGroup) and group.width == 1
    task.steady = one and not task.extra_names
    if _needs_no_logits(task):
        sampler = group.sequences[0].sampler
        task.plain = sampler.greedy and not task.rules.active
        task.drawn = sampler.simple and sampler.top_k <= min(MOST_DRAWN, vocab_size - 1)
        if task.drawn:
            _prepare_drawing(sampler, vocab_size)
    task.streams_tokens = _streams_tokens(task)


def _prepare_drawing(sampler: Sampler, vocab_size: int) -> None:
    """Make the sessions that draw tokens here, so that the engine's thread does not wait for them."""
    for way in [Way.TOP_K] if sampler.top_k else [Way.TOP_P, Way.TOP_P_AGAIN]:
        drawing_session(vocab_size, way)


def _lookahead(task: Task, decoding: DecodingConfig | None) -> Lookahead | None:
    """The drafter of a request, where its tokens can be drafted: one sequence, searched greedily."""
    config = task.request.lookahead_config or (decoding and decoding.lookahead_decoding_config)
    if not config or config.max_ngram_size < 2 or not task.draftable:
        return None
    if not task.group.sequences[0].sampler.greedy:
        return None
    return Lookahead(config.max_ngram_size, config.max_verification_set_size)


def _needs_no_logits(task: Task) -> bool:
    """Whether the next token is all that is wanted of a row of logits, and nothing but a temperature changes it."""
    request, wanted = task.request, task.request.output_config
    return (
        task.steady
        and task.rules.only_temperature
        and task.group.sequences[0].guide is None
        and not (task.want_log_probs or task.drafts)
        and not (wanted.return_generation_logits or task.reads_whole_context)
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
        task.prompt_alternatives is not None,
        request.return_cached_tokens,
    )
    return request.streaming and isinstance(task.group, SamplingGroup) and task.group.width == 1 and not any(more)


class Intake:
    """Checks requests and makes tasks of them. Raises ``CheckError`` or ``UnsupportedFeatureError``."""

    def __init__(
        self,
        info: RunnerInfo,
        config: ExecutorConfig,
        capacity: Capacity,
        guides: GuideFactory | None,
        adapters: AdapterCache | None = None,
        memory: AnswerMemory | None = None,
    ) -> None:
        self._info = info
        self._config = config
        self._checks = RequestChecks(info, config, capacity)
        self._guides = guides
        self._adapters = adapters
        self._memory = memory

    def task(self, request: Request, request_id: int) -> Task:
        """The task of a request; what it needs is checked against this executor.

        The caller may change the request afterwards and send it again: the task has a copy of its own.
        """
        request = _own(request)
        max_new_tokens, table = self._checks.check(request)
        endings = request.endings
        rules = self._rules(request, endings)
        self._checks.check_drafts(request)
        group = self._group(request)
        now = time.monotonic()
        allotted = request.allotted_time_ms
        wanted, most = request.output_config, request.most_log_probs
        extras = wanted.additional_model_outputs or ()
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
            alternatives=request.top_log_probs,
            prompt_alternatives=request.prompt_log_probs,
            log_probs=most if isinstance(most, LogProbs) else LogProbs(most),
            extra_names=tuple(extra.name for extra in extras),
            context_extra_names=frozenset(extra.name for extra in extras if extra.gather_context),
            drafts=_drafts(request, max_new_tokens),
            table=table,
            extra_ids=_extra_ids(request),
            pooled=pooled(request, self._info),
            rows=group.width if group.together else 1,
        )
        if task.pooled is not None:
            task.extra_names, task.context_extra_names = (HIDDEN,), frozenset([HIDDEN])
        _take_draft_logits(task)
        choose_shortcuts(task, self._info.vocab_size, self._config.decoding_config)
        task.lease = self._lease(request)  # last of all: nothing may fail after it that does not give it back
        task.key = _prefix_key(request, task.lease)
        if self._memory is not None and task.lookahead is not None and task.key.salt is not None:
            task.lookahead.remember(self._memory, task.key, len(request.input_token_ids))
        return task

    def _rules(self, request: Request, endings: Endings) -> LogitsRules:
        rules = LogitsRules.of(request)
        rules.stop_ids = frozenset((*endings.end_ids, *endings.stop_ids))
        if self._guides is not None and request.guided_decoding_params is not None:
            rules.stop_ids |= self._guides.stop_ids
        return rules

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
        if config.beam_width > 1:
            first = TokenSequence(0, prompt, len(prompt), Sampler(config), guide=guide)
            return BeamGroup(first, config, returned_beams(request))
        return SamplingGroup(prompt, config, sampled_sequences(request), guide)

    def _lease(self, request: Request) -> AdapterLease | None:
        if request.lora_config is None:
            return None
        if self._adapters is None:
            raise UnsupportedFeatureError(
                "Request.lora_config",
                "the model takes no adapters; build it with lora=True, or set RunnerOptions.lora",
            )
        return self._adapters.lease(request.lora_config)


def _drafts(request: Request, max_new_tokens: int) -> list[int]:
    config = request.external_draft_tokens_config
    return [] if config is None else config.tokens[: max_new_tokens - 1]


def _take_draft_logits(task: Task) -> None:
    """The logits that came with external draft tokens, at the request's temperature."""
    external = task.request.external_draft_tokens_config
    if external is not None and external.logits is not None:
        task.draft_logits = np.asarray(external.logits, np.float32) / np.float32(task.rules.temperature)
        task.draft_threshold = external.acceptance_threshold


def _own(request: Request) -> EngineRequest:
    """A copy with lists of its own; what was put into the caller's is checked once more. Tensors stay the caller's."""
    own = EngineRequest.of(request)
    own.output_config = copy(request.output_config)
    vars(own)["input_token_ids"] = tokens(request.input_token_ids, "Request.input_token_ids")
    own.bad_words = request.bad_words
    own.stop_words = [*(request.stop_words or ()), *([token] for token in own.endings.stop_ids)] or None
    return own


def _end_ids(request: Request, endings: Endings) -> frozenset[int]:
    return frozenset(endings.end_ids) | (frozenset() if request.end_id is None else {request.end_id})


def _extra_ids(request: Request) -> list[int]:
    config = request.prompt_tuning_config
    return [] if config is None else config.input_token_extra_ids or []


def _prefix_key(request: Request, lease: AdapterLease | None) -> PrefixKey:
    if lease is None:
        return PrefixKey(None, request.cache_salt_id)
    return PrefixKey(lease.adapter.task_id, request.cache_salt_id, lease.adapter.digest)
