"""Drafting: which requests get guesses before a step, and what becomes of the guesses after it."""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from repoagent_llm.engine.guide import Guide
from repoagent_llm.engine.iteration_stats import IterationCounts
from repoagent_llm.engine.step_budget import StepCost
from repoagent_llm.engine.task import Lookahead, Task
from repoagent_llm.engine.token_sequence import TokenSequence
from repoagent_llm.runner.paged import PagedRunner
from repoagent_llm.runner.protocol import EndableRunner, Logits, ModelRunner, Segment, Seq
from repoagent_llm.types.executor_errors import CheckError, EngineError

# Below this share of right guesses they cost more than they save: a step with guesses takes longer than one without.
_WORTH: Final = 0.25
# What the latest step counts for in the share of right guesses.
_WEIGHT: Final = 0.2
# Steps without a guess, at first and at most, before another one is tried.
_SHORTEST_REST: Final = 2
_LONGEST_REST: Final = 32
_TINY: Final = 1e-6


class DraftLength:
    """How many tokens are worth guessing for a text, by how many guesses were right lately.

    Starts with ``most`` guesses for a step.
    """

    def __init__(self, most: int) -> None:
        self._most = self._next = most
        self._share = 2 * _WORTH
        self._rest = 0
        self._last_rest = 0

    def take(self, least: float = 0.0) -> int:
        """How many tokens to guess for the step that comes; to be asked once for each.

        ``least``: how likely a guess must be right. The n-th is right if those before it are, too. Where not even
        the first is likely enough, one is tried now and then.
        """
        if self._rest:
            self._rest -= 1
            return 0
        if not least or self._share >= 1 > least:
            return self._next
        worth = int(math.log(least) / math.log(max(self._share, _TINY))) if least < 1 else 0
        if worth == 0:
            self._rest = _LONGEST_REST
        return min(self._next, max(1, worth))

    def note(self, guessed: int, right: int) -> None:
        """What became of the guesses: where all were right twice as many follow, else one more than were right.

        While few are right, steps without follow each try, twice as many each time, until most are right again.
        """
        self._next = min(self._most, 2 * guessed if right == guessed else right + 1)
        self._share += _WEIGHT * (right / guessed - self._share)
        if self._share < _WORTH:
            self._rest = self._last_rest = min(_LONGEST_REST, max(_SHORTEST_REST, 2 * self._last_rest))
        elif self._share > 2 * _WORTH:
            self._last_rest = 0


Row = npt.NDArray[np.float32]
logger = logging.getLogger(__name__)
# Tokens of a history that are read at a time; the large model's next step waits for them.
_PIECE = 512


@dataclass(slots=True)
class _Line:
    """What the draft model has of a text: its sequence holds ``read`` tokens, and then ``guessed``."""

    guess_count: DraftLength
    seq: Seq | None = None
    read: int = 0
    guessed: list[int] = field(default_factory=list)


class _Draft:
    """What is guessed for one task in one round."""

    def __init__(self, task: Task, line: _Line, most: int) -> None:
        self.task, self.line = task, line
        self._sequence = task.group.sequences[0]
        self._history = list(self._sequence.tokens)
        self._most = most
        self._tokens: list[int] = []
        self._sampler = self._sequence.sampler.fork()
        self._guide: Guide | None = None
        self._over = False

    @property
    def going(self) -> bool:
        """Whether more can be guessed."""
        return len(self._tokens) < self._most and not self._over

    def segment(self) -> Segment:
        """What the draft model has not seen, or a piece of it."""
        held = self.line.read + len(self.line.guessed)
        tokens = self._history[held : held + _PIECE]
        self._over = held + len(tokens) < len(self._history)  # a long history: the rest is for the next rounds
        inside = len(self._sequence.tokens) - self.line.read
        self.line.read += min(len(tokens), inside)
        self.line.guessed += tokens[inside:]
        assert self.line.seq is not None
        return Segment(self.line.seq, np.array(tokens, np.int32), Logits.LAST)

    def add(self, row: Row) -> None:
        """Guess from a row of logits as the task will choose: its guide, its rules, its limits, its random numbers."""
        if self._over:
            return
        sequence, rules, row = self._sequence, self.task.rules, row.copy()
        if sequence.guide is not None:
            self._guide = self._guide or sequence.guide.fork()
            self._guide.mask(row)
        rules.apply(row, self._history, sequence.generated + len(self._tokens))
        try:
            token = self._sampler.choose(row)
        except (CheckError, EngineError):  # nothing can follow, says the draft model
            self._over = True
            return
        self._tokens.append(token)
        self._history.append(token)
        ended = self._guide is not None and self._guide.is_end(token)
        if ended or token in self.task.end_ids:
            self._over = True
        elif self._guide is not None:
            self._guide.accept(token)

    def hand_over(self) -> None:
        """Let the task have its drafts."""
        self.task.drafts = self._tokens


class DraftModel:
    """A small model that guesses what a large one will write, a few tokens for each step of the large one.

    Drafts for tasks, ``length`` tokens at most, while at most ``crowd`` requests run. Only ``close`` may raise. Each
    text has a line, a sequence of the draft model's own cache; before a line is continued, wrong guesses are removed
    and the large model's tokens are read instead. Lines outlive pauses, and lose their place when others need it.

    Guesses do not change a text: a guess is kept where the large model chooses the same token. Guesses of a sampled
    text are drawn by a copy of its sampler with the same random numbers, so similar distributions mostly agree.
    """

    def __init__(self, runner: ModelRunner, length: int, crowd: int) -> None:
        self.crowd = crowd
        self.cost = StepCost()
        self._runner = runner
        self._length = length
        self._lines: dict[int, _Line] = {}
        self._failed = False

    def draft(self, tasks: Sequence[Task], least: float = 0.0) -> None:
        """Set the drafts of tasks whose texts go on behind their last token; ``least``: see DraftLength."""
        wanted = [(task, most) for task in tasks if (most := self._most(task, least)) > 0]
        try:
            self._draft([_Draft(task, self._line(task, tasks), most) for task, most in wanted])
        except Exception as error:  # drafts only save time, so whatever goes wrong costs no more than the drafts
            self._give_up([task for task, _ in wanted], error)

    def note(self, task: Task, guessed: int) -> None:
        """So many of a task's drafts were verified, ``task.right`` of them were right."""
        if task.id in self._lines:
            self._lines[task.id].guess_count.note(guessed, task.right)

    def forget(self, task: Task) -> None:
        """Free what is held for a task that has ended."""
        line = self._lines.pop(task.id, None)
        if line is None or line.seq is None:
            return
        try:
            self._runner.free(line.seq)
        except Exception as error:
            self._warn(error)

    def end(self) -> None:
        """See EndableRunner."""
        if isinstance(self._runner, EndableRunner):
            self._runner.end()

    def close(self) -> None:
        """Release everything."""
        self._lines.clear()
        self._runner.close()

    def _most(self, task: Task, least: float) -> int:
        """How many tokens may be guessed: neither text nor draft model has room for more, and the last is free."""
        sequence = task.group.sequences[0]
        room = self._runner.info.max_seq_len - len(sequence.tokens) + 1  # the last guess is not read
        most = min(task.max_new_tokens - sequence.generated - 1, room)
        if most < 1:
            return 0
        line = self._lines.setdefault(task.id, _Line(DraftLength(self._length)))
        return min(most, line.guess_count.take(least))

    def _line(self, task: Task, present: Sequence[Task]) -> _Line:
        """The task's line, which holds nothing but tokens of its text."""
        line = self._lines[task.id]
        if line.seq is None:
            line.seq = self._open({other.id for other in present})
        elif line.guessed:
            said = task.group.sequences[0].tokens[line.read : line.read + len(line.guessed)]
            wrong = (i for i, token in enumerate(line.guessed) if i >= len(said) or said[i] != token)
            line.read += next(wrong, len(line.guessed))
            line.guessed = []
            self._runner.truncate(line.seq, line.read)
        return line

    def _open(self, present: set[int]) -> Seq:
        """A sequence, if need be in the place of one that is not wanted now."""
        seq = self._runner.open()
        if seq is not None:
            return seq
        for number, line in self._lines.items():
            if number not in present and line.seq is not None:
                self._runner.free(line.seq)
                line.seq, line.read, line.guessed = None, 0, []
        seq = self._runner.open()
        if seq is None:
            raise EngineError("the draft model has no free sequence")
        return seq

    def _draft(self, drafts: list[_Draft]) -> None:
        going = drafts
        while going:
            segments = [draft.segment() for draft in going]
            began = time.monotonic()
            result = self._runner.step(segments)
            self.cost.note(sum(len(segment.tokens) for segment in segments), time.monotonic() - began)
            for draft, rows in zip(going, result.rows, strict=True):
                draft.add(result.logits[rows.start])
            going = [draft for draft in going if draft.going]
        for draft in drafts:
            draft.hand_over()

    def _give_up(self, tasks: Sequence[Task], error: Exception) -> None:
        """These go on without drafts; later requests try again."""
        for task in tasks:
            task.drafts, task.draftable = [], False
            self.forget(task)
        self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self._failed:
            logger.warning("the draft model failed, requests continue without drafts: %s", error)
        self._failed = True


# So many running requests may draft by lookahead where rows with drafts run one by one.
_ALONE = 2
# Each has a row of logits, and a guide may force a whole page.
_MOST_FORCED = 16


class Drafting:
    """Drafts by lookahead, by a draft model, or of what a guide forces.

    On pages one run verifies the guesses of all requests. How many there are follows from what a step costs and how
    many were right. In slabs rows with drafts run one by one, so that there are none in a crowd.
    """

    def __init__(self, runner: ModelRunner, model: DraftModel | None, cost: StepCost) -> None:
        self._runner = runner
        self._model = model
        self._cost = cost
        self._packed = isinstance(runner, PagedRunner)
        self._lengths: dict[int, DraftLength] = {}

    def propose(self, running: Sequence[Task], counts: IterationCounts) -> None:
        """Draft what may follow the texts of the running requests, before their next step is planned."""
        least = self._cost.least_share(len(running)) if self._packed else 0.0
        if self._packed or len(running) <= _ALONE:
            for task in running:
                guide = task.group.sequences[0].guide if self._model is None and task.draftable else None
                if task.lookahead is not None and _waits_for_one(task):
                    task.drafts = self._look_ahead(task, task.lookahead, least)
                elif guide is not None and _waits_for_one(task):
                    task.drafts = _forced(task, guide)
        if self._model is not None and len(running) <= self._model.crowd:
            began = time.monotonic()
            tasks = [task for task in running if task.draftable and _waits_for_one(task)]
            if self._packed and tasks:
                each = self._model.cost.of(len(tasks)) / len(tasks)
                least = self._cost.least_share(len(running), each * len(running))
            self._model.draft(tasks, least)
            counts.drafting_seconds = time.monotonic() - began

    def _look_ahead(self, task: Task, lookahead: Lookahead, least: float) -> list[int]:
        sequence = task.group.sequences[0]
        found = lookahead.propose(sequence.tokens, task.max_new_tokens - sequence.generated - 1)
        if found and self._packed:
            length = self._lengths.setdefault(task.id, DraftLength(lookahead.longest))
            del found[length.take(least) :]
        return found

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
        if task.id in self._lengths:
            self._lengths[task.id].note(drafted, task.right)
        task.drafted += drafted
        task.accepted += task.right
        counts.drafting += 1
        counts.drafted += drafted
        counts.accepted += task.right
        if task.iterations:  # else they were verified with the prompt, which is no generation yet
            counts.generated_tokens += task.right

    def forget(self, task: Task) -> None:
        """A task has ended."""
        self._lengths.pop(task.id, None)
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


def _forced(task: Task, guide: Guide) -> list[int]:
    """What the guide leaves no choice of: a run for all of it, instead of one for each token."""
    most = min(_MOST_FORCED, task.max_new_tokens - task.group.sequences[0].generated - 1)
    try:
        return list(guide.forced()[: max(0, most)])
    except Exception:  # a guess only saves time; a guide that is broken fails its request at the next mask
        return []


def _waits_for_one(task: Task) -> bool:
    """Whether all is computed but the last token, and nothing is drafted yet."""
    return task.started and not task.drafts and task.group.sequences[0].pending == 1
