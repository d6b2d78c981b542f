"""The scheduler: which requests run in the next iteration, and with which tokens.

Most iterations are rounds: every running request takes one token. The plan of a round is kept while the same requests
run; ``Scheduler.pieces`` is what makes all other plans, and could make these.
"""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from repoagent_llm.engine.blocks import Budget
from repoagent_llm.engine.sampling_group import SamplingGroup
from repoagent_llm.engine.sequence_cache import SequenceCache
from repoagent_llm.engine.step_budget import StepCost, split_budget
from repoagent_llm.engine.task import Task
from repoagent_llm.engine.token_sequence import TokenSequence
from repoagent_llm.runner.block_pool import BLOCK_TOKENS, blocks_for
from repoagent_llm.runner.protocol import DecodeRound, Logits, Segment
from repoagent_llm.types.enums import CapacitySchedulerPolicy, ContextChunkingPolicy, RequestStage

# How many requests may overtake one of another width: then they wait until it has run.
_MOST_PASSING = 64
# Of the sequences of a request, one part in so many gives way at a time.
_PARTS = 8
# Tokens of prompts in an iteration, however long it then takes: else prompts would never end.
_LEAST_READ = 16
# Of a prompt of which each token's logits are wanted, in an iteration: of 150,000 tokens so many rows take 150 MB.
_MOST_ROWS = 256


class Others(Enum):
    """What executors do that share the cores."""

    IDLE = auto()
    READ = auto()
    """They have requests, and none of these waits for its next token."""
    GENERATE = auto()


@dataclass(frozen=True, slots=True)
class Limits:
    """What the scheduler keeps to.

    ``max_tokens``: of one iteration; ``max_tokens_generating``: of one in which running requests, of this executor or
    of another, wait for their next tokens; ``max_tokens_contended``: of one for whose end others only wait to read.
    A prompt that is read whole may exceed them. ``beginners_wait``: those that have one token wait as those that have
    none. ``shares``: the sequences of a request share the blocks of its prompt. ``most_blocks``: that a sequence
    ever holds, where all layers have windows. ``gap_seconds``: an aim for the time between tokens of a request, which
    stands in for ``max_tokens_generating``.
    """

    policy: CapacitySchedulerPolicy
    chunking: ContextChunkingPolicy | None
    chunked: bool
    max_requests: int
    max_sequences: int
    max_tokens: int
    max_tokens_generating: int
    max_tokens_contended: int
    beginners_wait: bool = False
    shares: bool = False
    most_blocks: int | None = None
    gap_seconds: float | None = None


@dataclass(slots=True)
class Work:
    """Tokens of one sequence in an iteration; ``complete``: no token of the sequence is left out."""

    task: Task
    sequence: TokenSequence
    segment: Segment
    complete: bool = True


@dataclass(slots=True)
class Plan:
    """What an iteration computes. ``round``: the segments of the works, where each is the next token of a request."""

    works: list[Work]
    round: DecodeRound | None = None

    @property
    def segments(self) -> Sequence[Segment]:
        """What the runner is given."""
        return self.round if self.round is not None else [work.segment for work in self.works]


class Scheduler:
    """Holds the waiting and the running requests, both in the order of priority, then arrival."""

    def __init__(self, limits: Limits, budget: Budget, cache: SequenceCache, cost: StepCost) -> None:
        self.waiting: list[Task] = []
        self.running: list[Task] = []
        self.aside: list[Task] = []
        """Paused, and to stay so until they are held no more."""
        self.paused_now = 0
        self._failures: list[tuple[Task, Exception]] = []
        self._round: Plan | None = None
        self._given_back = False  # rows or blocks, since the last plan
        self._limits = limits
        self._budget = budget
        self._cache = cache
        self._cost = cost

    @property
    def generates(self) -> bool:
        """Whether a running request has had its second token."""
        return any(task.iterations > 1 for task in self.running)

    @property
    def idle(self) -> bool:
        """Whether nothing can be computed before something arrives."""
        return not self.running and not self.waiting

    def plan(self, others: Others = Others.IDLE) -> Plan:
        """Admit what may start, pause what no longer fits, and give every running sequence its tokens."""
        self.paused_now = 0
        if self.waiting:
            self._admit()
        if self._limits.policy is CapacitySchedulerPolicy.MAX_UTILIZATION:
            self._make_room()
        if self._round is None:
            self._spread()
        if self._round is not None and any(task.drafts for task in self.running):
            self._round = None
        if self._round is None and self.running and all(map(_in_step, self.running)):
            self._round = _round(self.running)
        if self._round is None:
            return Plan(self.pieces(others))
        assert self._round.round is not None
        self._round.round.tokens[:] = [work.sequence.tokens[-1] for work in self._round.works]
        return self._round

    def pieces(self, others: Others = Others.IDLE) -> list[Work]:
        """The tokens of every running sequence: what is left of its text, as far as the budget goes."""
        works: list[Work] = []
        reading: list[tuple[Task, TokenSequence, int]] = []
        for task in tuple(self.running):
            try:
                readable = self._cache.readable(task)
            except Exception as error:  # whatever a runner raises ends this request, and nothing else
                self._give_up(task, error)
                continue
            for sequence, tokens in _needs(task, readable):
                if tokens == 1 and sequence.pending == 1 and task.started:
                    # Drafts go with their token; they must not wait behind prompts.
                    works.append(_piece(task, sequence, 1))
                elif tokens:
                    rows = _MOST_ROWS if self._limits.chunked and task.reads_whole_context else tokens
                    reading.append((task, sequence, min(tokens, rows)))
        if not reading:
            return works
        return works + self._read(reading, self._most_tokens(works, others) - len(works))

    def _most_tokens(self, works: Sequence[Work], others: Others) -> int:
        """How many tokens may be computed beside ``works``, which take one each."""
        if others is Others.GENERATE or any(map(self._waits, works)):
            return self._tokens_generating(len(works))
        return self._limits.max_tokens if others is Others.IDLE else self._limits.max_tokens_contended

    def _tokens_generating(self, rows: int) -> int:
        limits = self._limits
        if limits.gap_seconds is None:
            return limits.max_tokens_generating
        return min(limits.max_tokens, max(rows + _LEAST_READ, self._cost.tokens_within(limits.gap_seconds)))

    def _waits(self, work: Work) -> bool:
        """Whether a request that generates is not to be held up by prompts.

        While no one generates no one waits: what came together is read together, and goes on together. Of a burst the
        first may have been read before the others came; it loses no more than if they had come at once.
        """
        return work.sequence.generated > 1 or not self._limits.beginners_wait

    def add(self, task: Task) -> None:
        """Let a request wait for its turn."""
        bisect.insort(self.waiting, task, key=lambda item: item.order)

    def hold(self, task: Task, held: bool) -> None:
        """Let a request give way to all that wait, or go on."""
        task.held = held
        if not held and task in self.aside:
            self.aside.remove(task)
            self.add(task)

    def finish(self, task: Task) -> None:
        """Take a request out, wherever it is; its sequences and blocks are free afterwards."""
        for group in (self.waiting, self.running, self.aside):
            if task in group:
                group.remove(task)
        self._round = None
        self._given_back = True
        self._release(task)

    def take_failures(self) -> list[tuple[Task, Exception]]:
        """Requests that the last plan could not start, and what the runner raised; they wait to be finished."""
        failures, self._failures = self._failures, []
        return failures

    def _admit(self) -> None:
        """Start waiting requests in order. No one overtakes one that does not fit yet; one of another width, which
        cannot run beside the others at all, is passed over, but not forever. Each starts with one sequence."""
        static = self._limits.policy is CapacitySchedulerPolicy.STATIC_BATCH
        if static and self.running:
            return
        place = 0
        while place < len(self.waiting):
            task = self.waiting[place]
            if self._has_another_width(task) and task.passed_over < _MOST_PASSING:
                place += 1
                continue
            self._hand_out([each for each in self.running if each.priority > task.priority])
            while not self._may_start(task) or not self._has_blocks(task):
                if not self._gives_way(task):
                    return
            self.waiting.pop(place)
            for passed in self.waiting[:place]:
                passed.passed_over += 1
            try:
                self._cache.open(task)
            except Exception as error:  # whatever a runner raises ends this request, and nothing else
                self._failures.append((task, error))
                self._release(task)
                continue
            self._round = None
            self._given_back = True  # what it was waited for with is for all, now
            task.paused = False
            task.stage = RequestStage.CONTEXT_IN_PROGRESS
            bisect.insort(self.running, task, key=lambda item: item.order)

    def _has_another_width(self, task: Task) -> bool:
        """In slabs beams of one width run at a time, so another width waits until the last of them is done."""
        if not self.running or self._limits.shares:
            return False
        first = self.running[0]
        return (task.group.together or first.group.together) and task.group.width != first.group.width

    def _may_start(self, task: Task) -> bool:
        if not self.running:
            return True
        if self._has_another_width(task):
            return False
        return len(self.running) < self._limits.max_requests and task.rows <= self._free_rows()

    def _free_rows(self) -> int:
        return self._limits.max_sequences - sum(task.rows for task in self.running)

    def _awaited(self, priority: float) -> bool:
        """Whether the first that waits comes before further sequences of a request of that priority."""
        limits = self._limits
        if not self.waiting or limits.policy is CapacitySchedulerPolicy.STATIC_BATCH:
            return False
        return self.waiting[0].priority >= priority and len(self.running) < limits.max_requests

    def _gives_way(self, waiting: Task) -> bool:
        """Stop some sequences of a request that has several, for one that waits; False: there are none to stop.

        One that is held stops altogether."""
        if self._pauses_held():
            return True
        if self._has_another_width(waiting) or len(self.running) >= self._limits.max_requests:
            return False
        for task in reversed(self.running):
            if task.rows > 1 and not task.group.together and task.priority <= waiting.priority:
                # Of blocks it is not known how many that gives back: an eighth at a time, not each on its own.
                self._take_rows(task, max(1, task.rows // _PARTS) if self._may_start(waiting) else 1)
                return True
        return False

    def _take_rows(self, task: Task, count: int) -> None:
        """Its last sequences wait. What they have computed is retained like that of those that have ended."""
        task.rows = max(1, task.rows - count)
        for sequence in task.open()[task.rows :]:
            self._cache.keep(task, sequence)
            self._cache.close_sequence(sequence)
        self._budget.grow(task, self._blocks(task))

    def _spread(self) -> None:
        """Let more sequences run of requests that want several, those with the fewest first."""
        groups = [(task, task.group) for task in self.running]
        wide = [(task, group) for task, group in groups if group.width > 1 and isinstance(group, SamplingGroup)]
        for task, _ in wide:
            if task.started and (left := max(1, len(task.open()))) < task.rows:
                task.rows, self._given_back = left, True
                self._budget.grow(task, self._blocks(task))
        if self._given_back:
            self._given_back = False
            self._hand_out([task for task, _ in wide if not self._awaited(task.priority)])
        for task, group in wide:
            if task.started:  # before its prompt has been read there is one alone
                self._open_more(task, group)

    def _hand_out(self, tasks: Sequence[Task]) -> None:
        """Give them the rows that are left, by priority, then to those with the fewest."""
        free = self._free_rows()
        tasks = sorted(
            (task for task in tasks if task.rows < task.unfinished), key=lambda each: (-each.priority, each.rows)
        )
        for number, task in enumerate(tasks):
            peers = sum(other.priority == task.priority for other in tasks[number:])
            before, more = task.rows, min(task.unfinished - task.rows, -(-free // peers))
            while more > 0:
                task.rows = before + more
                if self._budget.grow(task, self._blocks(task)):
                    break
                more //= 2
                task.rows = before
            free -= task.rows - before

    def _open_more(self, task: Task, group: SamplingGroup) -> None:
        """Those that may run do: first those that have begun."""
        begun = [sequence for sequence in task.active() if sequence.seq is None]
        try:
            for _ in range(min(task.rows, task.unfinished) - len(task.open())):
                self._cache.open_sequence(task, begun.pop(0) if begun else group.begin())
        except Exception as error:  # whatever a runner raises ends this request, and nothing else
            self._give_up(task, error)

    def _give_up(self, task: Task, error: Exception) -> None:
        self._failures.append((task, error))
        self.running.remove(task)
        self._release(task)

    def _has_blocks(self, task: Task) -> bool:
        blocks = self._blocks(task)
        return self._budget.grow(task, blocks) or self._budget.grow(task, blocks, self._cache.shared_blocks(task))

    def _blocks(self, task: Task) -> int:
        """Blocks that the policy wants a request to hold before its next iteration."""
        prompt = len(task.request.input_token_ids)
        longest = max((len(each.tokens) for each in task.active()), default=prompt) + len(task.drafts) + 1
        if self._limits.policy is not CapacitySchedulerPolicy.MAX_UTILIZATION:
            longest = prompt + task.max_new_tokens
        most = self._limits.most_blocks
        if most is not None and blocks_for(longest) > most:
            return task.rows * most  # the prompt, which is shared, falls behind the window
        shared = prompt // BLOCK_TOKENS if self._limits.shares else 0
        return shared + task.rows * (blocks_for(longest) - shared)

    def _make_room(self) -> None:
        """Stop sequences and pause requests from the end of the order until what is left fits."""
        place = 0
        while place < len(self.running):
            task = self.running[place]
            if self._budget.grow(task, self._blocks(task)):
                place += 1
            elif self._pauses_held():
                place = 0
            elif (last := self.running[-1]).rows > 1 and not last.group.together:
                self._take_rows(last, 1)
            else:
                self._pause(last)

    def _pauses_held(self) -> bool:
        """Pause the last request that is held, whose blocks are found again unless others need them; False: none is."""
        task = next((task for task in reversed(self.running) if task.held), None)
        if task is None:
            return False
        for sequence in task.open():
            self._cache.keep(task, sequence)
        self._pause(task)
        return True

    def _pause(self, task: Task) -> None:
        """Give back everything but the tokens; they are computed again when it is the request's turn again."""
        self.running.remove(task)
        self._round = None
        self._release(task)
        task.paused, task.stage = True, RequestStage.QUEUED
        task.rows = task.group.width if task.group.together else 1
        if not task.started:  # the prompt is read from its start once more
            task.context_logits.clear()
            task.prompt_log_probs.clear()
            task.context_extras.clear()
            if task.pooled is not None:
                task.pooled.clear()
        self.paused_now += 1
        if task.held:
            self.aside.append(task)
        else:
            self.add(task)

    def _release(self, task: Task) -> None:
        """Give back a request's sequences and blocks."""
        self._cache.close(task)
        self._budget.release(task)

    def _read(self, reading: list[tuple[Task, TokenSequence, int]], budget: int) -> list[Work]:
        """Longer pieces: prompts, and histories after a pause."""
        wanted = [tokens for _, _, tokens in reading]
        peers = sum(task.priority == reading[0][0].priority for task, _, _ in reading)
        limits = self._limits
        shares = split_budget(wanted, budget, limits.chunking, chunked=limits.chunked, peers=peers)
        return [
            _piece(task, sequence, share)
            for (task, sequence, _), share in zip(reading, shares, strict=True)
            if share > 0
        ]


def _in_step(task: Task) -> bool:
    """Whether a request takes one token now, and in every iteration until it is drafted for."""
    return task.steady and task.started and not task.drafts and task.group.sequences[0].pending == 1


def _round(tasks: Sequence[Task]) -> Plan:
    sequences = [task.group.sequences[0] for task in tasks]
    segments = DecodeRound.of([sequence.seq for sequence in sequences if sequence.seq is not None])
    return Plan(list(map(Work, tasks, sequences, segments)), segments)


def _needs(task: Task, active: Sequence[TokenSequence]) -> Iterator[tuple[TokenSequence, int]]:
    """How many tokens each sequence should take next. Beams wait for each other before their last token."""
    if not task.group.together or len(task.active()) == 1:
        for sequence in active:
            yield sequence, sequence.pending
        return
    behind = any(sequence.pending > 1 for sequence in active)
    for sequence in active:
        yield sequence, sequence.pending - behind


def _piece(task: Task, sequence: TokenSequence, share: int) -> Work:
    """The next ``share`` tokens of a sequence that is being read, with the drafts behind its last token."""
    assert sequence.seq is not None
    start = sequence.computed
    complete = share == sequence.pending
    tokens = sequence.tokens[start : start + share]
    drafts = task.drafts if complete else []
    in_prompt = task.reads_all_logits and start < sequence.prompt_length and sequence.index == 0
    logits = Logits.ALL if drafts or in_prompt else Logits.LAST if complete and task.pooled is None else Logits.NONE
    extras = task.extra_names if complete or task.context_extra_names else ()
    array = np.array(tokens + drafts, np.int32)
    embeddings = task.table.take_from(array) if task.table is not None else None
    return Work(task, sequence, Segment(sequence.seq, array, logits, extras, embeddings), complete)
