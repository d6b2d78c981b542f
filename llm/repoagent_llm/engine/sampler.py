"""Sampler: chooses the tokens of one sequence: its settings and its random numbers, over ``token_sampling``."""

import copy
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from repoagent_llm.engine.token_sampling import Limits, distribution, draw, draw_from, log_softmax, nothing_follows
from repoagent_llm.types.request import SamplingConfig

DEFAULT_TOP_P_MIN = 1e-6


class Sampler:
    """Greedy unless top-k (above 1) or top-p is asked for; temperature 0 is greedy too."""

    def __init__(self, config: SamplingConfig, index: int = 0) -> None:
        """``index`` is the sequence's place in its request; each draws its own numbers."""
        top_k = config.top_k or 0
        self._limits = Limits(
            top_k, 1.0 if config.top_p is None else config.top_p, 0.0 if config.min_p is None else config.min_p
        )
        asked = top_k > 1 or (top_k == 0 and (config.top_p is not None or bool(config.min_p)))
        self.greedy = not asked or config.temperature == 0.0
        self._first_top_p = self._limits.top_p
        self._decay = 1.0 if config.top_p_decay is None else config.top_p_decay
        self._top_p_min = DEFAULT_TOP_P_MIN if config.top_p_min is None else config.top_p_min
        self._reset_id = -1 if config.top_p_reset_ids is None else config.top_p_reset_ids
        self._scratch: npt.NDArray[np.float32] | None = None
        seeds = [config.seed or 0, index]
        self._random = None if self.greedy else np.random.Generator(np.random.Philox(seeds))
        self._peeked: list[float] = []
        #: Whether top-p stays as it is.
        self.steady = self._decay == 1.0

    def fork(self) -> "Sampler":
        """An independent copy in the same state: from like rows it chooses what this one is going to choose."""
        twin = copy.copy(self)  # shares the scratch, which holds nothing from one choice to the next
        twin._limits = replace(self._limits)
        twin._random = copy.deepcopy(self._random)
        twin._peeked = list(self._peeked)
        return twin

    @property
    def simple(self) -> bool:
        """Whether top-k, top-p and the temperature are all that decides, and a random number."""
        return not self.greedy and self._limits.min_p == 0.0

    @property
    def top_k(self) -> int:
        """The top-k of every token; 0: none."""
        return self._limits.top_k

    @property
    def top_p(self) -> float:
        """The top-p of the next token."""
        return self._limits.top_p

    def peek(self, count: int = 1) -> list[float]:
        """This sequence's next random numbers, so many at least; ``accept``, ``choose`` and ``verify`` use them up."""
        assert self._random is not None
        while len(self._peeked) < count:
            self._peeked.append(self._random.random())
        return self._peeked

    def accept(self, token: int, used: int = 1) -> None:
        """A token was drawn by the first ``used`` numbers of ``peek``."""
        del self._peeked[:used]
        self._move_top_p(token)

    def _next_random(self) -> float:
        return self.peek().pop(0)

    def choose(self, row: npt.NDArray[np.float32]) -> int:
        """The next token of a row of logits."""
        if self._random is None:
            return _largest(row)
        if self._scratch is None or self._scratch.shape != row.shape:
            self._scratch = np.empty_like(row)
        try:
            token = draw(row, self._limits, self._next_random, self._scratch)
        except IndexError:  # no running sum reaches what is no number
            raise nothing_follows(row) from None
        _check_drawn(row, token)
        self._move_top_p(token)
        return token

    def verify(
        self, row: npt.NDArray[np.float32], draft: int, draft_row: npt.NDArray[np.float32], threshold: float | None
    ) -> int:
        """The next token where the caller's drafter with these logits drew ``draft``; greedy search ignores the guess.

        A guess is kept with probability p / q (the model's over the drafter's), or when p / q reaches ``threshold``.
        Otherwise the token comes from what p has more than q; so, without a threshold, tokens follow p exactly.
        """
        if self._random is None:
            return _largest(row)
        wanted = distribution(row, self._limits)
        guessed = np.exp(log_softmax(draft_row), dtype=np.float64)
        ratio = wanted[draft] / max(guessed[draft], np.finfo(np.float64).tiny)
        limit = self._next_random() if threshold is None else threshold
        token = draft
        if ratio < limit or wanted[draft] == 0.0:
            rest = np.maximum(wanted - guessed, 0.0)
            token = draw_from(rest if rest.any() else wanted, self._next_random())
        _check_drawn(row, token)
        self._move_top_p(token)
        return token

    def _move_top_p(self, token: int) -> None:
        """Top-p shrinks with every token and starts again after the reset token."""
        if token == self._reset_id:
            self._limits.top_p = self._first_top_p
        elif self._decay != 1.0:
            self._limits.top_p = max(self._limits.top_p * self._decay, self._top_p_min)


def _largest(row: npt.NDArray[np.float32]) -> int:
    token = int(row.argmax())
    _check_drawn(row, token)
    return token


def _check_drawn(row: npt.NDArray[np.float32], token: int) -> None:
    if not row[token] > -np.inf:
        raise nothing_follows(row)
