"""How many tokens a step may have: what a step costs by their number, and how prompts share them."""

from collections.abc import Sequence
from typing import Final

from repoagent_llm.runner.block_pool import BLOCK_TOKENS
from repoagent_llm.types.enums import ContextChunkingPolicy

_WEIGHT: Final = 0.1
# What a token more costs of a step of one token until steps of several sizes were seen: decoders on two cores had 0.08.
_PRIOR: Final = 0.1
_LARGEST: Final = 256
"""Tokens of a step from which nothing is learnt: products of many rows cost less per row."""


class StepCost:
    """A part for the step itself, and a part for each token; late steps count most."""

    def __init__(self) -> None:
        self._tokens = self._seconds = self._variance = self._covariance = 0.0
        self._share = _PRIOR

    def note(self, tokens: int, seconds: float) -> None:
        """A step of ``tokens`` tokens took ``seconds``."""
        if tokens > _LARGEST:
            return
        if not self._seconds:
            self._tokens, self._seconds = float(tokens), seconds
            return
        more, longer = tokens - self._tokens, seconds - self._seconds
        self._tokens += _WEIGHT * more
        self._seconds += _WEIGHT * longer
        self._variance = (1 - _WEIGHT) * (self._variance + _WEIGHT * more * more)
        self._covariance = (1 - _WEIGHT) * (self._covariance + _WEIGHT * more * longer)
        if self._variance > 1:
            each = max(0.0, self._covariance / self._variance)
            fixed = self._seconds - each * self._tokens
            self._share = each / fixed if fixed > each else 1.0

    def of(self, tokens: int) -> float:
        """Seconds that a step of ``tokens`` tokens takes; 0 before the first."""
        return self._seconds * (1 + self._share * tokens) / (1 + self._share * self._tokens)

    def tokens_within(self, seconds: float) -> int:
        """How many tokens a step may have to take ``seconds``; at least 1."""
        one = self.of(1) - self.of(0)
        return max(1, int((seconds - self.of(0)) / one)) if one > 0 else _LARGEST

    def least_share(self, rows: int, guessing: float = 0.0) -> float:
        """Of guesses, how many must be right so that one more saves what it costs.

        In a step of ``rows`` texts a right guess saves one of them a token, that is ``1 / rows`` of a step.
        ``guessing``: seconds that one more guess for each of them takes before the step.
        """
        step = self.of(rows)
        return self._share * rows / (1 + self._share * rows) + (guessing / step if step else 0.0)


def split_budget(
    wanted: Sequence[int], budget: int, policy: ContextChunkingPolicy | None, *, chunked: bool, peers: int = 0
) -> list[int]:
    """Tokens for each of the prompts, which are in order and want ``wanted`` tokens. At least one gets some.

    Without a policy, the first ``peers`` of them, which have one priority, are read so that a short one does not wait
    for the end of a long one.
    """
    budget = max(1, budget)
    if not chunked:
        return _whole(wanted, budget)
    if policy is ContextChunkingPolicy.EQUAL_PROGRESS:
        return _equal(wanted, budget)
    if policy is None:
        shares = _short_beside_long(wanted[:peers], budget)
        return shares + _first_come(wanted[peers:], budget - sum(shares))
    return _first_come(wanted, budget)


def _first_come(wanted: Sequence[int], budget: int) -> list[int]:
    shares = []
    for tokens in wanted:
        share = min(tokens, budget)
        shares.append(share)
        budget -= share
    return shares


def _whole(wanted: Sequence[int], budget: int) -> list[int]:
    """Prompts are read in one piece; the first is read even if it exceeds the budget."""
    shares = [0] * len(wanted)
    for place, tokens in enumerate(wanted):
        if place > 0 and tokens > budget:
            break
        shares[place] = tokens
        budget -= tokens
    return shares


def _short_beside_long(wanted: Sequence[int], budget: int) -> list[int]:
    """Half of the budget to the first, so that it ends; the rest from the one with the least left on.

    Of prompts of one length the first has all of it: as many answers begin as early as they can.
    """
    shares = [0] * len(wanted)
    if wanted:
        shares[0] = min(wanted[0], budget - budget // 2)
        budget -= shares[0]
    for place in sorted(range(len(wanted)), key=wanted.__getitem__):
        more = min(wanted[place] - shares[place], budget)
        shares[place] += more
        budget -= more
    return shares


def _equal(wanted: Sequence[int], budget: int) -> list[int]:
    """One block after the other to each prompt in turn."""
    shares = [0] * len(wanted)
    while budget > 0 and any(share < tokens for share, tokens in zip(shares, wanted, strict=True)):
        for place, tokens in enumerate(wanted):
            more = min(BLOCK_TOKENS, tokens - shares[place], budget)
            shares[place] += more
            budget -= more
    return shares
