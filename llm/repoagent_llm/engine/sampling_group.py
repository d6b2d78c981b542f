"""SamplingGroup: the sequences of a request without beams, each with a ``Sampler``; ``BeamGroup`` has those with."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from repoagent_llm.engine.guide import Guide
from repoagent_llm.engine.sampler import Sampler
from repoagent_llm.engine.task import Task
from repoagent_llm.engine.token_sampling import likeliest, log_softmax
from repoagent_llm.engine.token_sequence import TokenSequence
from repoagent_llm.engine.word_lists import ends_with_any
from repoagent_llm.runner.protocol import ModelRunner
from repoagent_llm.types.enums import FinishReason
from repoagent_llm.types.executor_errors import CheckError, EngineError
from repoagent_llm.types.request import SamplingConfig

Rows = npt.NDArray[np.float32]


def add_token(task: Task, sequence: TokenSequence, token: int) -> None:
    """Append a token and see whether it ends the text. The end token itself is not kept, a stop word is."""
    request, tokens = task.request, sequence.tokens
    if token in task.end_ids:
        sequence.reason = FinishReason.END_ID
        return
    tokens.append(token)
    if request.stop_words and ends_with_any(tokens, sequence.generated, request.stop_words):
        sequence.reason = FinishReason.STOP_WORDS
    elif len(tokens) - sequence.prompt_length >= task.max_new_tokens:
        sequence.reason = FinishReason.LENGTH


class SamplingGroup:
    """``width`` sequences that share a prompt; each has its own random numbers.

    Those that may run when the prompt has been read part there. The others begin later, and read its end once more.
    """

    together = False

    def __init__(self, prompt: list[int], config: SamplingConfig, width: int = 1, guide: Guide | None = None) -> None:
        """``guide``: for the first sequence; others have a copy of it."""
        self.sequences = [TokenSequence(0, prompt, len(prompt), Sampler(config), guide=guide)]
        self.width = width
        self._config = config
        self._origin = self.sequences[0].fork(0, None, self.sequences[0].sampler) if width > 1 else None

    def done(self) -> bool:
        """See Group."""
        return len(self.sequences) == self.width and all(sequence.finished for sequence in self.sequences)

    def stop(self, reason: FinishReason) -> None:
        """See Group. Where all that began have ended, one more answers with the reason."""
        if len(self.sequences) < self.width and all(sequence.finished for sequence in self.sequences):
            self.begin()
        self.width = len(self.sequences)
        for sequence in self.sequences:
            if not sequence.finished:
                sequence.reason = reason

    def advance(self, task: Task, runner: ModelRunner, ready: Sequence[TokenSequence], rows: Sequence[Rows]) -> None:
        """See Group."""
        if len(self.sequences) == 1 and task.rows > 1 and not ready[0].generated:
            self._part(task, runner, ready[0], rows[0])
            return
        for sequence, sequence_rows in zip(ready, rows, strict=True):
            self._choose(task, sequence, sequence_rows)

    def begin(self) -> TokenSequence:
        """One more sequence, which has nothing but the prompt."""
        assert self._origin is not None
        index = len(self.sequences)
        self.sequences.append(self._origin.fork(index, None, Sampler(self._config, index)))
        return self.sequences[-1]

    def _part(self, task: Task, runner: ModelRunner, first: TokenSequence, rows: Rows) -> None:
        """The prompt has been read: make the other sequences that may run."""
        assert first.seq is not None
        for index in range(1, task.rows):
            seq = runner.fork(first.seq)
            if seq is None:
                raise EngineError("the runner has no free sequence for one that was reserved")
            self.sequences.append(first.fork(index, seq, Sampler(self._config, index)))
        for sequence in self.sequences:
            self._choose(task, sequence, rows.copy())

    def _choose(self, task: Task, sequence: TokenSequence, rows: Rows) -> None:
        """One token, and one more for each draft that turns out right."""
        drafts = task.drafts if len(rows) > 1 else []
        task.right = 0
        for place, row in enumerate(rows):
            draft = drafts[place] if place < len(drafts) else None
            try:
                token = self._draw_one(task, sequence, row, draft, place)
            except Exception:
                if not place:
                    raise
                task.right -= 1  # The last right one is computed again, and fails alone: those so far are answered.
                return
            self._take(task, sequence, row, token)
            right = token == draft
            task.right += right
            if sequence.finished or not right:
                return

    def _draw_one(
        self, task: Task, sequence: TokenSequence, row: npt.NDArray[np.float32], draft: int | None, place: int
    ) -> int:
        if sequence.guide is not None:
            sequence.guide.mask(row)
        task.rules.apply(row, sequence.tokens, sequence.generated, sequence.seen)
        if draft is None or task.draft_logits is None:
            return sequence.sampler.choose(row)
        return sequence.sampler.verify(row, draft, task.draft_logits[place], task.draft_threshold)

    def _take(self, task: Task, sequence: TokenSequence, row: npt.NDArray[np.float32], token: int) -> None:
        before = len(sequence.tokens)
        if sequence.guide is not None and sequence.guide.is_end(token):
            sequence.reason = FinishReason.END_ID
            return
        add_token(task, sequence, token)
        if sequence.guide is not None and not sequence.finished:
            sequence.guide.accept(token)
        if task.want_log_probs and len(sequence.tokens) > before:
            values = log_softmax(row)
            value = float(values[token])
            sequence.log_probs.append(value)
            sequence.cum_log_prob += value
            if task.alternatives is not None:
                sequence.alternatives.append(likeliest(values, task.alternatives))
                task.log_probs.left -= task.alternatives + 1
                if task.log_probs.left < 0:
                    raise CheckError(
                        f"its texts have more than {task.log_probs.most} log-probabilities, alternatives counted; ask "
                        "for fewer, or raise Request.most_log_probs (--limit-log-probs of a server)"
                    )
