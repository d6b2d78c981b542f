"""Drafting: which requests get guesses before a step, and what becomes of the guesses after it."""

import time
from collections.abc import Sequence

from repoagent_llm.engine.draft_model import DraftModel
from repoagent_llm.engine.iteration_stats import IterationCounts
from repoagent_llm.engine.task import Task
from repoagent_llm.engine.token_sequence import TokenSequence
from repoagent_llm.runner.protocol import ModelRunner

__all__ = ["Drafting"]

# So many running requests may draft by lookahead.
_ALONE = 2


class Drafting:
    """Drafts by lookahead, or by a draft model. Not in a crowd: rows with drafts run one by one, others together."""

    def __init__(self, runner: ModelRunner, model: DraftModel | None) -> None:
        self._runner = runner
        self._model = model

    def propose(self, running: Sequence[Task], counts: IterationCounts) -> None:
        """Draft what may follow the texts of the running requests, before their next step is planned."""
        if len(running) <= _ALONE:
            for task in running:
                if task.lookahead is not None and _waits_for_one(task):
                    sequence = task.group.sequences[0]
                    task.drafts = task.lookahead.propose(sequence.tokens, task.max_new_tokens - sequence.generated - 1)
        if self._model is not None and len(running) <= self._model.crowd:
            began = time.monotonic()
            self._model.draft([task for task in running if task.draftable and _waits_for_one(task)])
            counts.drafting_seconds = time.monotonic() - began

    def settle(self, task: Task, sequence: TokenSequence, counts: IterationCounts) -> None:
        """Forget what was computed for drafts that were wrong, and count."""
        drafted = len(task.drafts)
        task.drafts = []
        sequence.computed = min(len(sequence.tokens), sequence.computed - drafted + task.right)
        for kept in (sequence.generation_logits, *sequence.extras.values()):
            del kept[sequence.generated :]
        assert sequence.seq is not None
        self._runner.truncate(sequence.seq, sequence.computed)
        # The sender of the drafts sends the next ones with a request of their own.
        sequence.handed_back = task.request.external_draft_tokens_config is not None
        if self._model is not None:
            self._model.note(task, drafted)
        task.drafted += drafted
        task.accepted += task.right
        counts.drafting += 1
        counts.drafted += drafted
        counts.accepted += task.right
        if task.iterations:  # else they were verified with the prompt, which is no generation yet
            counts.generated_tokens += task.right

    def forget(self, task: Task) -> None:
        """A task has ended."""
        if self._model is not None:
            self._model.forget(task)

    def end(self) -> None:
        """Let what the draft model runs fail soon."""
        if self._model is not None:
            self._model.end()

    def close(self) -> None:
        """Release the draft model."""
        if self._model is not None:
            self._model.close()


def _waits_for_one(task: Task) -> bool:
    """Whether all is computed but the last token, and nothing is drafted yet."""
    return task.started and not task.drafts and task.group.sequences[0].pending == 1
