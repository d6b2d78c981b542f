"""SamplingGroup: one or several sequences, each chosen token by token on its own."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from repoagent.executor.engine.drawing import log_softmax
from repoagent.executor.engine.sampler import Sampler
from repoagent.executor.engine.strand import Strand
from repoagent.executor.engine.task import Task
from repoagent.executor.engine.words import ends_with_any
from repoagent.executor.errors import EngineError
from repoagent.executor.runner.protocol import ModelRunner
from repoagent.executor.types.enums import FinishReason

__all__ = ["SamplingGroup", "add_token"]

Rows = npt.NDArray[np.float32]


def add_token(task: Task, strand: Strand, token: int) -> None:
    """Append a token and see whether it ends the text. The end token itself is not kept, a stop word is."""
    request, tokens = task.request, strand.tokens
    if token == request.end_id:
        strand.reason = FinishReason.END_ID
        return
    tokens.append(token)
    if request.stop_words and ends_with_any(tokens, strand.generated, request.stop_words):
        strand.reason = FinishReason.STOP_WORDS
    elif len(tokens) - strand.prompt_length >= task.max_new_tokens:
        strand.reason = FinishReason.LENGTH


class SamplingGroup:
    """``width`` sequences that share a prompt; they part after it, each with its own random numbers."""

    together = False

    def __init__(self, first: Strand, samplers: Sequence[Sampler]) -> None:
        self.strands = [first]
        self.width = len(samplers)
        self._samplers = list(samplers)

    def done(self) -> bool:
        """See Group."""
        return len(self.strands) == self.width and all(strand.finished for strand in self.strands)

    def stop(self, reason: FinishReason) -> None:
        """See Group."""
        self.width = len(self.strands)
        for strand in self.strands:
            if not strand.finished:
                strand.reason = reason

    def advance(self, task: Task, runner: ModelRunner, ready: Sequence[Strand], rows: Sequence[Rows]) -> None:
        """See Group."""
        if len(self.strands) < self.width:
            self._part(task, runner, ready[0], rows[0])
            return
        for strand, strand_rows in zip(ready, rows, strict=True):
            self._choose(task, strand, strand_rows)

    def _part(self, task: Task, runner: ModelRunner, first: Strand, rows: Rows) -> None:
        """The prompt has been read: make the other sequences."""
        assert first.seq is not None
        for index in range(1, self.width):
            seq = runner.fork(first.seq)
            if seq is None:
                raise EngineError("the runner has no room for a sequence that was reserved")
            self.strands.append(first.fork(index, seq, self._samplers[index]))
        for strand in self.strands:
            self._choose(task, strand, rows.copy())

    def _choose(self, task: Task, strand: Strand, rows: Rows) -> None:
        """One token, and one more for each draft that turns out right."""
        drafts = task.drafts if len(rows) > 1 else []
        task.right = 0
        for place, row in enumerate(rows):
            draft = drafts[place] if place < len(drafts) else None
            token = self._choose_one(task, strand, row, draft, place)
            right = token == draft
            task.right += right
            if strand.finished or not right:
                return

    def _draw_one(self, task: Task, strand: Strand, row: npt.NDArray[np.float32], draft: int | None, place: int) -> int:
        if strand.guide is not None:
            strand.guide.mask(row)
        task.rules.apply(row, strand.tokens, strand.generated)
        if draft is None or task.draft_logits is None:
            return strand.sampler.choose(row)
        return strand.sampler.verify(row, draft, task.draft_logits[place], task.draft_threshold)

    def _choose_one(
        self, task: Task, strand: Strand, row: npt.NDArray[np.float32], draft: int | None, place: int
    ) -> int:
        token = self._draw_one(task, strand, row, draft, place)
        before = len(strand.tokens)
        if strand.guide is not None and strand.guide.is_end(token):
            strand.reason = FinishReason.END_ID
            return token
        add_token(task, strand, token)
        if strand.guide is not None and not strand.finished:
            strand.guide.accept(token)
        if task.want_log_probs and len(strand.tokens) > before:
            value = float(log_softmax(row)[token])
            strand.log_probs.append(value)
            strand.cum_log_prob += value
        return token
