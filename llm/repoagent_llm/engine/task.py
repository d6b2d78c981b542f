"""Task: a request inside the engine, from its arrival to its last answer."""

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from repoagent_llm.engine.logits import LogitsRules
from repoagent_llm.engine.page import Marked, PrefixKey
from repoagent_llm.engine.pooling import Pooled
from repoagent_llm.engine.prefix_pool import Retention
from repoagent_llm.engine.prompt_table import PromptTable
from repoagent_llm.engine.token_sequence import TokenSequence
from repoagent_llm.lora.cache import AdapterLease
from repoagent_llm.runner.protocol import ModelRunner
from repoagent_llm.types.enums import FinishReason, RequestStage
from repoagent_llm.types.request import EngineRequest, LogProbs


class AnswerMemory:
    """N-grams of a model's answers by what they may be reused for and their first two tokens; the latest ``most``.

    The key has the cache salt of the request: how fast an answer comes shows whether the same was answered before.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._rests: OrderedDict[tuple[PrefixKey, int, int], tuple[int, ...]] = OrderedDict()

    def learn(self, key: PrefixKey, first: tuple[int, int], rest: tuple[int, ...]) -> None:
        """Note that ``rest`` came behind the tokens ``first``."""
        self._rests[(key, *first)] = rest
        self._rests.move_to_end((key, *first))
        if len(self._rests) > self._most:
            self._rests.popitem(last=False)

    def recall(self, key: PrefixKey, first: tuple[int, int]) -> tuple[int, ...]:
        """What came behind ``first`` the last time; empty if it is not known."""
        return self._rests.get((key, *first), ())


class Lookahead:
    """Drafts from n-grams that were seen before; the model verifies them in one run.

    A pool maps each token to the n-grams that began with it, in the prompt and in the generated text. The drafts behind
    the last token are the rest of the latest n-gram that begins with it, behind the same token as here. Of texts and
    programs a half of what two tokens lead to is right, and a fifth of what one does. ``ngram_size``: longest n-gram;
    ``kept``: how many are kept for each first token.
    """

    def __init__(self, ngram_size: int, kept: int) -> None:
        self._size = ngram_size
        self._kept = max(1, kept)
        self._pool: dict[int, deque[tuple[int, ...]]] = {}
        self._read = 0
        self._memory: tuple[AnswerMemory, PrefixKey, int] | None = None

    def remember(self, memory: AnswerMemory, key: PrefixKey, prompt: int) -> None:
        """Draft from earlier answers too, and add this one to them: what follows ``prompt`` tokens."""
        self._memory = memory, key, prompt

    @property
    def longest(self) -> int:
        """How many tokens are guessed at most."""
        return self._size - 1

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        """At most ``most`` drafts of what follows ``tokens``; none when nothing like its end was seen."""
        return list(self._rest(tokens)[: max(0, min(most, self.longest))])

    def _rest(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """What followed the last two of ``tokens`` before, first of all in this text."""
        self._learn(tokens)
        if len(tokens) < 2:
            return ()
        before, last = tokens[-2:]
        best = next((ngram[1:] for ngram in self._pool.get(last, ()) if ngram[0] == before), ())
        if not best and self._memory is not None:
            memory, key, _ = self._memory
            best = memory.recall(key, (before, last))
        return best

    def _learn(self, tokens: Sequence[int]) -> None:
        """Take up the n-grams that have become complete; each is kept with the token before it."""
        for start in range(self._read, len(tokens) - self._size + 1):
            before = tokens[start - 1] if start else -1
            ngram = (before, *tokens[start + 1 : start + self._size])
            known = self._pool.setdefault(tokens[start], deque(maxlen=self._kept))
            if ngram in known:
                known.remove(ngram)
            known.appendleft(ngram)
            if self._memory is not None and start > self._memory[2]:
                self._memory[0].learn(self._memory[1], (before, tokens[start]), ngram[1:])
        self._read = max(self._read, len(tokens) - self._size + 1)


Rows = npt.NDArray[np.float32]


class Group(Protocol):
    """How the sequences of one request get their tokens."""

    sequences: list[TokenSequence]
    width: int
    together: bool

    def advance(self, task: "Task", runner: ModelRunner, ready: Sequence[TokenSequence], rows: Sequence[Rows]) -> None:
        """Give every ready sequence its next token. ``rows[i]``: logits after the last tokens of ``ready[i]``,
        [1, vocabulary], or [1 + drafts, vocabulary]; may be changed."""

    def done(self) -> bool:
        """Whether nothing is left to generate."""

    def stop(self, reason: FinishReason) -> None:
        """End with what there is."""


@dataclass(slots=True)
class TaskTimes:
    """Moments of ``time.monotonic()``; 0: not yet. Iterations count from the executor's start."""

    arrival: float
    first_scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    first_iteration: int | None = None
    last_iteration: int | None = None


@dataclass(slots=True)
class BlockCounts:
    """KV blocks of the prompt: computed, and found in the pool, where they had ``tokens`` tokens."""

    allocated: int = 0
    reused: int = 0
    missed: int = 0
    tokens: int = 0

    @property
    def hit_rate(self) -> float:
        """Reused of all."""
        return self.reused / max(1, self.reused + self.missed)


@dataclass(slots=True, eq=False)
class Task:
    """A request inside the engine.

    ``steady``: one sequence of which nothing but logits is wanted; without drafts it takes one token an iteration.
    ``plain``: steady and greedy, without anything that needs logits on the host; ``drawn``: the same, but drawn in a
    graph. ``streams_tokens``: one sequence whose tokens are streamed as they come, and nothing else of it.
    ``draftable``: a draft model may guess for it. ``draft_logits``: those that the request brought with its drafts,
    after temperature. ``alternatives``: how many of the likeliest tokens are reported with each;
    ``prompt_alternatives``: with each token of the prompt.
    """

    id: int
    request: EngineRequest
    priority: float
    times: TaskTimes
    group: Group
    rules: LogitsRules
    max_new_tokens: int
    deadline: float | None = None
    #: The tokens that end its texts and are not part of them.
    end_ids: frozenset[int] = frozenset()
    steady: bool = False
    plain: bool = False
    drawn: bool = False
    streams_tokens: bool = False
    want_log_probs: bool = False
    alternatives: int | None = None
    prompt_alternatives: int | None = None
    #: How many more its texts, and those of others, may have, alternatives counted.
    log_probs: LogProbs = field(default_factory=lambda: LogProbs(math.inf))
    extra_names: tuple[str, ...] = ()
    context_extra_names: frozenset[str] = frozenset()
    drafts: list[int] = field(default_factory=list)
    draft_logits: Rows | None = None
    draft_threshold: float | None = None
    key: PrefixKey = field(default_factory=PrefixKey)
    lease: AdapterLease | None = None
    table: PromptTable | None = None
    extra_ids: Sequence[int] = ()
    #: How many of its sequences may run at once: all beams; of others the first, and more as they fit.
    rows: int = 1
    stage: RequestStage = RequestStage.QUEUED
    paused: bool = False
    #: No one takes its responses for now: it gives way when others wait.
    held: bool = False
    started: bool = False
    #: How many requests behind it have started before it, as it has another width than those that run.
    passed_over: int = 0
    iterations: int = 0
    blocks: BlockCounts = field(default_factory=BlockCounts)
    drafted: int = 0
    accepted: int = 0
    #: How many drafts of the last verification were right.
    right: int = 0
    lookahead: Lookahead | None = None
    draftable: bool = False
    context_logits: list[Rows] = field(default_factory=list)
    #: Of each token of the prompt but the first: its log-probability, its rank from 1 on, and the likeliest tokens in
    #: its place.
    prompt_log_probs: list[tuple[float, int, list[tuple[int, float]]]] = field(default_factory=list)
    context_extras: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    #: It ends with its prompt, of which it wants a vector.
    pooled: Pooled | None = None

    @property
    def order(self) -> tuple[float, int]:
        """Higher priorities first, then earlier arrivals."""
        return (-self.priority, self.id)

    @property
    def reads_whole_context(self) -> bool:
        """Whether every prompt token must be computed, so that nothing can be reused."""
        return self.reads_all_logits or (self.pooled is not None and self.pooled.whole)

    @property
    def reads_all_logits(self) -> bool:
        """Whether logits of every prompt token are wanted."""
        return bool(self.request.output_config.return_context_logits) or self.prompt_alternatives is not None

    def marked(self, tokens: Sequence[int]) -> Sequence[Marked]:
        """``tokens`` of a sequence; those with an extra id as pairs with it."""
        if not self.extra_ids:
            return tokens
        pairs = zip(tokens, self.extra_ids, strict=False)
        return [(token, extra) if extra else token for token, extra in pairs] + list(tokens[len(self.extra_ids) :])

    def active(self) -> list[TokenSequence]:
        """TokenSequences that still grow."""
        return [sequence for sequence in self.group.sequences if not sequence.finished]

    def open(self) -> list[TokenSequence]:
        """Those of them that the runner has."""
        return [sequence for sequence in self.active() if sequence.seq is not None]

    @property
    def unfinished(self) -> int:
        """How many sequences still grow, those that have not begun counted."""
        return self.group.width - sum(sequence.finished for sequence in self.group.sequences)


def retention_of(task: Task, start: int) -> Retention | None:
    """How dearly the page that begins at token ``start`` is kept; None: the request does not say."""
    config = task.request.kv_cache_retention_config
    if config is None:
        return None
    if start >= len(task.request.input_token_ids):
        lasting = config.decode_duration_ms
        return Retention(config.decode_retention_priority, None if lasting is None else lasting.total_seconds())
    for item in config.token_range_retention_configs:
        if item.token_start <= start and (item.token_end is None or start < item.token_end):
            return Retention(item.priority, None if item.duration_ms is None else item.duration_ms.total_seconds())
    return None
