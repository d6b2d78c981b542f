"""From tasks to responses."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from repoagent_llm.engine.beam_group import BeamGroup
from repoagent_llm.engine.task import Task
from repoagent_llm.engine.token_sequence import TokenSequence
from repoagent_llm.types.result import (
    AdditionalOutput,
    KvCacheMetrics,
    RequestPerfMetrics,
    Response,
    Result,
    SpeculativeDecodingMetrics,
    TimingMetrics,
)


class ResultMaker:
    """Builds the responses that a task owes after an iteration."""

    def __init__(self, *, normalize_log_probs: bool) -> None:
        self._normalize = normalize_log_probs

    def collect(self, task: Task, iteration: int) -> list[Response]:
        """New tokens of a streaming request, or whatever has ended."""
        if task.streams_tokens:
            return self._tokens(task)
        return self._anything(task, iteration)

    def _tokens(self, task: Task) -> list[Response]:
        """The same as ``_anything`` for what most streams are, but faster."""
        sequence = task.group.sequences[0]
        if sequence.answered or not (sequence.finished or sequence.generated > sequence.sent):
            return []
        sequence.answered = sequence.finished
        return [self.streamed(task, sequence)]

    def streamed(self, task: Task, sequence: TokenSequence) -> Response:
        """The new tokens of a task that ``streams_tokens``; there are some, or its text has ended."""
        count = len(sequence.tokens) - sequence.prompt_length
        new = sequence.tokens[sequence.prompt_length + sequence.sent :]
        sequence.sent = count
        return Response.streamed(task.id, task.request.client_id, (new, sequence.reason, task.iterations, count))

    def _anything(self, task: Task, iteration: int) -> list[Response]:
        if isinstance(task.group, BeamGroup):
            return self._beams(task, task.group, iteration)
        responses = []
        for sequence in task.group.sequences:
            if sequence.answered:
                continue
            if sequence.finished or (task.request.streaming and sequence.generated > sequence.sent):
                sequence.answered = sequence.finished
                final = (
                    sequence.finished and all(other.answered for other in task.group.sequences) and task.group.done()
                )
                result = self._result(task, [sequence], final, iteration)
                result.sequence_index = sequence.index
                sequence.sent = sequence.generated
                responses.append(Response(task.id, result, task.request.client_id))
        return responses

    def _beams(self, task: Task, group: BeamGroup, iteration: int) -> list[Response]:
        done = group.done() or all(sequence.finished for sequence in group.sequences)
        if not done and not task.request.streaming:
            return []
        result = self._result(task, group.best(), done, iteration, group)
        return [Response(task.id, result, task.request.client_id)]

    def _result(
        self,
        task: Task,
        sequences: Sequence[TokenSequence],
        final: bool,
        iteration: int,
        beams: BeamGroup | None = None,
    ) -> Result:
        request, wanted = task.request, task.request.output_config
        # Beams change their past, so they are always given whole.
        whole = not request.streaming or request.return_all_generated_tokens or beams is not None
        starts = [0 if whole else sequence.sent for sequence in sequences]
        with_input = not request.streaming and not wanted.exclude_input_from_output
        result = Result.trusted(
            is_final=final,
            output_token_ids=[
                list(sequence.tokens) if with_input else sequence.generated_tokens(start)
                for sequence, start in zip(sequences, starts, strict=True)
            ],
            finish_reasons=[sequence.reason for sequence in sequences],
            # Beams that are the best so far may have ended while others still may overtake them.
            is_sequence_final=final if beams is not None else sequences[0].finished,
            decoding_iter=task.iterations,
            avg_decoded_tokens_per_iter=sequences[0].generated / max(1, task.iterations),
        )
        if wanted.return_log_probs:
            # All so far, also while streaming, as in TensorRT-LLM: of a long text, that takes the square of its length.
            firsts = starts if request.new_log_probs else [0] * len(starts)
            result.log_probs = [sequence.log_probs[first:] for sequence, first in zip(sequences, firsts, strict=True)]
            result.cum_log_probs = [self._cumulated(sequence, beams) for sequence in sequences]
            if task.alternatives is not None and beams is None:
                vars(result)["top_log_probs"] = [_alternatives(sequence, kept=whole) for sequence in sequences]
        if request.return_cached_tokens:
            vars(result)["cached_tokens"] = task.blocks.tokens
        if task.pooled is not None and task.started:
            vars(result)["embedding"] = task.pooled.vector()
        if task.prompt_alternatives is not None:
            vars(result)["prompt_log_probs"] = task.prompt_log_probs  # whole, and not changed any more
        if wanted.return_context_logits and task.context_logits:
            result.context_logits = _joined(task.context_logits)
        if wanted.return_generation_logits:
            result.generation_logits = _generation_logits(task, sequences, starts)
        if wanted.return_perf_metrics:
            result.request_perf_metrics = _perf_metrics(task, iteration, final)
        if wanted.additional_model_outputs:
            result.additional_outputs = _additional(task, sequences, starts)
        return result

    def _cumulated(self, sequence: TokenSequence, beams: BeamGroup | None) -> float:
        if beams is None or not self._normalize:
            return sequence.cum_log_prob
        return beams.score(sequence.cum_log_prob, beams.scored_length(sequence))


def _alternatives(sequence: TokenSequence, *, kept: bool) -> list[list[tuple[int, float]]]:
    """Those that there are; of what is not wanted again nothing is kept, as each takes kilobytes."""
    found = list(sequence.alternatives)
    if not kept:
        sequence.alternatives.clear()
    return found


def _joined(parts: list[Any]) -> Any:
    """One array, which all results share."""
    if len(parts) > 1:
        parts[:] = [np.concatenate(parts)]
    return parts[0]


def _generation_logits(task: Task, sequences: Sequence[TokenSequence], starts: Sequence[int]) -> Any:
    """[beams, tokens, vocabulary]; while streaming [tokens, beams, vocabulary]."""
    stacked = _stacked([sequence.generation_logits for sequence in sequences], sequences, starts)
    return stacked.swapaxes(0, 1) if task.request.streaming else stacked


def _additional(task: Task, sequences: Sequence[TokenSequence], starts: Sequence[int]) -> list[AdditionalOutput]:
    """``context_NAME`` [prompt tokens that were computed, ...] and ``NAME`` [beams, tokens, ...]."""
    outputs = [
        AdditionalOutput(f"context_{name}", np.concatenate(parts)) for name, parts in task.context_extras.items()
    ]
    for name in task.extra_names:
        parts = [sequence.extras.get(name, []) for sequence in sequences]
        outputs.append(AdditionalOutput(name, _stacked(parts, sequences, starts)))
    return outputs


def _stacked(kept: Sequence[Sequence[Any]], sequences: Sequence[TokenSequence], starts: Sequence[int]) -> Any:
    """[beams, tokens, ...] of what each beam keeps for each of its tokens; shorter beams end in zeros."""
    pieces = [rows[start : sequence.generated] for rows, sequence, start in zip(kept, sequences, starts, strict=True)]
    like = next((rows[0] for rows in kept if rows), np.zeros((), np.float32))
    stacked = np.zeros((len(pieces), max(map(len, pieces)), *like.shape), like.dtype)
    for place, piece in enumerate(pieces):
        for number, value in enumerate(piece):
            stacked[place, number] = value
    return stacked


def _perf_metrics(task: Task, iteration: int, final: bool) -> RequestPerfMetrics:
    times, blocks = task.times, task.blocks
    return RequestPerfMetrics(
        TimingMetrics(
            arrival_time=timedelta(seconds=times.arrival),
            first_scheduled_time=timedelta(seconds=times.first_scheduled),
            first_token_time=timedelta(seconds=times.first_token),
            last_token_time=timedelta(seconds=times.last_token if final else 0.0),
        ),
        KvCacheMetrics(blocks.allocated, blocks.allocated, blocks.reused, blocks.missed, blocks.hit_rate),
        SpeculativeDecodingMetrics(task.accepted / max(1, task.drafted), task.accepted, task.drafted),
        first_iter=times.first_iteration,
        last_iter=times.last_iteration if final else None,
        iter=iteration,
    )
