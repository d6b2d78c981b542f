"""How the tokens of an iteration are shared out among the prompts that are read in it."""

from collections.abc import Sequence

from repoagent_llm.runner.block_pool import BLOCK_TOKENS
from repoagent_llm.types.enums import ContextChunkingPolicy


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
