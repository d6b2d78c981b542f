"""Which of the engine's shorter ways a task may take."""

from repoagent_llm.engine.batch_sampler import MOST_DRAWN
from repoagent_llm.engine.lookahead import Lookahead
from repoagent_llm.engine.sampler import Sampler
from repoagent_llm.engine.sampling_group import SamplingGroup
from repoagent_llm.engine.task import Task
from repoagent_llm.engine.token_sampling_graph import Way, drawing_session
from repoagent_llm.types.decoding_config import DecodingConfig

__all__ = ["choose_shortcuts"]


def choose_shortcuts(task: Task, vocab_size: int, decoding: DecodingConfig | None) -> None:
    """Note which of the engine's shorter ways ``task`` may take; ``decoding`` is the executor's."""
    group = task.group
    task.draftable = _is_draftable(task)
    task.lookahead = _lookahead(task, decoding)
    one = isinstance(group, SamplingGroup) and group.width == 1
    task.steady = one and not (task.lookahead or task.extra_names)
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
