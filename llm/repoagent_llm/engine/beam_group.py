"""BeamGroup: beam search.

Each step looks at the best continuations of all beams together. Those that end a text go to the finished ones, which
are ranked by score: the sum of log-probabilities divided by length ** length_penalty. The rest are the new beams.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from repoagent_llm.engine.task import Task
from repoagent_llm.engine.token_sampling import log_softmax, nothing_follows
from repoagent_llm.engine.token_sequence import TokenSequence
from repoagent_llm.engine.word_lists import ends_with_any
from repoagent_llm.runner.protocol import ModelRunner, Seq
from repoagent_llm.types.enums import FinishReason
from repoagent_llm.types.executor_errors import EngineError
from repoagent_llm.types.request import SamplingConfig

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A continuation: of which beam, by which token, with which sum and log-probability."""

    parent: int
    token: int
    total: float
    log_prob: float


class BeamGroup:
    """At most ``width`` beams that advance together: the ``sequences``. ``best`` has the texts."""

    together = True

    def __init__(self, first: TokenSequence, config: SamplingConfig, returned: int) -> None:
        self.sequences = [first]
        self.width = config.beam_width
        self._widths = config.beam_width_array or [config.beam_width]
        self._returned = returned
        self._common = first.prompt_length
        self._parted = False
        self._penalty = 0.0 if config.length_penalty is None else config.length_penalty
        self._early = 1 if config.early_stopping is None else config.early_stopping
        self._diversity = config.beam_search_diversity_rate or 0.0
        self._finished: list[tuple[float, TokenSequence]] = []
        self._over = False
        self._at_limit = False
        # Whether the sequences are no texts of their own any more: their continuations have ended.
        self._continued = False

    def done(self) -> bool:
        """See Group."""
        return self._over

    def stop(self, reason: FinishReason) -> None:
        """See Group."""
        self._over = True
        for sequence in self.sequences:
            sequence.reason = reason

    def score(self, total: float, length: int) -> float:
        """The rank of a text of ``length`` generated tokens."""
        return total / float(length) ** self._penalty if length else total

    def scored_length(self, sequence: TokenSequence) -> int:
        """The length that counts in a text's score; an end token counts although it is not kept."""
        return sequence.generated + (sequence.reason is FinishReason.END_ID)

    def best(self) -> list[TokenSequence]:
        """The best texts so far, finished or not, best first."""
        running = [] if self._continued else self.sequences
        ranked = self._finished + [
            (self.score(sequence.cum_log_prob, sequence.generated), sequence) for sequence in running
        ]
        ranked.sort(key=lambda item: -item[0])
        return [sequence for _, sequence in ranked[: self._returned]]

    def advance(self, task: Task, runner: ModelRunner, ready: Sequence[TokenSequence], rows: Sequence[Rows]) -> None:
        """See Group."""
        length = ready[0].generated + 1
        self._at_limit = length >= task.max_new_tokens
        width = self._widths[min(length, len(self._widths)) - 1]
        candidates = self._candidates(task, ready, [sequence_rows[-1] for sequence_rows in rows], width)
        running = self._sort_out(task, ready, candidates, length, width)
        if not running and not self._finished:
            raise nothing_follows(*(sequence_rows[-1] for sequence_rows in rows))
        self._over = self._at_limit or not running or self._decided(running[0], length, task.max_new_tokens)
        if running and (self._at_limit or not self._over):
            self._follow(runner, running)
        else:
            self._continued = True
        if self._at_limit:
            for sequence in self.sequences:
                sequence.reason = FinishReason.LENGTH

    def _sort_out(
        self, task: Task, ready: Sequence[TokenSequence], candidates: list[_Candidate], length: int, width: int
    ) -> list[_Candidate]:
        """Put texts that end to the finished ones; the best of the others go on.

        A text that ends counts only among the ``width`` best: a worse one would take a better beam's place. At the
        length limit everything ends, so there the same holds for all.
        """
        running: list[_Candidate] = []
        for rank, candidate in enumerate(candidates):
            parent, among_best = ready[candidate.parent], rank < width
            if candidate.token in task.end_ids:
                if among_best:
                    self._finish(parent, candidate, FinishReason.END_ID, length)
            elif self._stops(task, parent, candidate.token):
                if among_best:
                    self._finish(parent, candidate, FinishReason.STOP_WORDS, length)
            elif len(running) < width and (among_best or not self._at_limit):
                running.append(candidate)
        return running

    def _candidates(self, task: Task, ready: Sequence[TokenSequence], rows: list[Rows], width: int) -> list[_Candidate]:
        """The best continuations of all beams, best first; enough that endings cannot use them up."""
        endings = task.end_ids | {word[-1] for word in task.request.stop_words or () if word}
        want = width * (1 + max(1, len(endings)))
        found: list[tuple[float, _Candidate]] = []
        for number, (sequence, row) in enumerate(zip(ready, rows, strict=True)):
            task.rules.apply(row, sequence.tokens, sequence.generated)
            log_probs = log_softmax(row)
            count = min(want, len(row))
            top = np.argpartition(log_probs, len(row) - count)[len(row) - count :]
            top = top[np.argsort(-log_probs[top], kind="stable")]
            for rank, token in enumerate(top.tolist()):
                log_prob = float(log_probs[token])
                total = sequence.cum_log_prob + log_prob
                value = total - self._diversity * rank
                if value > -np.inf:  # nor no number, as all are where nothing can follow
                    found.append((value, _Candidate(number, token, total, log_prob)))
        found.sort(key=lambda item: -item[0])
        return [candidate for _, candidate in found[:want]]

    def _stops(self, task: Task, parent: TokenSequence, token: int) -> bool:
        words = task.request.stop_words
        return bool(words) and ends_with_any([*parent.tokens, token], parent.generated + 1, words or ())

    def _finish(self, parent: TokenSequence, candidate: _Candidate, reason: FinishReason, length: int) -> None:
        text = parent.fork(0, None, parent.sampler)
        if reason is FinishReason.STOP_WORDS:
            text.tokens.append(candidate.token)
            text.log_probs.append(candidate.log_prob)
        text.reason, text.cum_log_prob = reason, candidate.total
        self._finished.append((self.score(candidate.total, length), text))
        self._finished.sort(key=lambda item: -item[0])
        del self._finished[self.width :]

    def _decided(self, best: _Candidate, length: int, longest: int) -> bool:
        """Whether no running beam can still get among the finished ones, as ``early_stopping`` sees it."""
        if len(self._finished) < self.width:
            return False
        if self._early == 1:
            return True
        at = longest if self._early > 1 and self._penalty > 0 else length
        return self.score(best.total, at) <= self._finished[-1][0]

    def _follow(self, runner: ModelRunner, running: list[_Candidate]) -> None:
        """Make the sequences hold the chosen continuations, in the runner too."""
        order = [candidate.parent for candidate in running]
        seqs = self._sequences(runner, order)
        self._parted = True
        parents = self.sequences
        self.sequences = [parents[parent].fork(i, seqs[i], parents[parent].sampler) for i, parent in enumerate(order)]
        for sequence, candidate in zip(self.sequences, running, strict=True):
            sequence.tokens.append(candidate.token)
            sequence.log_probs.append(candidate.log_prob)
            sequence.cum_log_prob = candidate.total
        for seq in seqs[len(order) :]:
            runner.free(seq)

    def _sequences(self, runner: ModelRunner, order: list[int]) -> list[Seq]:
        """A sequence for each of ``order``, holding what its parent holds; behind these the ones that are left over."""
        seqs = [sequence.seq for sequence in self.sequences if sequence.seq is not None]
        forks: list[Seq] = []
        try:
            while len(seqs) + len(forks) < len(order):
                forks.append(self._fork(runner))
            seqs += forks
            if self._parted:
                runner.reorder(seqs, [*order, *range(len(order), len(seqs))], self._common)
        except Exception:  # no sequence has them yet, so no one else would free them
            for seq in forks:
                runner.free(seq)
            raise
        return seqs

    def _fork(self, runner: ModelRunner) -> Seq:
        """One more sequence; what it holds after the prompt does not matter."""
        first = self.sequences[0].seq
        assert first is not None
        seq = runner.fork(first)
        if seq is None:
            raise EngineError("the runner has no free sequence for a beam that was reserved")
        return seq
