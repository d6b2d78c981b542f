"""How the token budget of an iteration is shared by prompts."""

from collections.abc import Sequence

from repoagent_llm.engine.blocks import BLOCK_TOKENS
from repoagent_llm.types.enums import ContextChunkingPolicy

__all__ = ["split_budget"]


def split_budget(wanted: Sequence[int], budget: int, policy: ContextChunkingPolicy, *, chunked: bool) -> list[int]:
    """Tokens for each of the prompts, which are in order and want ``wanted`` tokens. At least one gets some."""
    budget = max(1, budget)
    if not chunked:
        return _whole(wanted, budget)
    if policy is ContextChunkingPolicy.EQUAL_PROGRESS:
        return _equal(wanted, budget)
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


def _equal(wanted: Sequence[int], budget: int) -> list[int]:
    """One block after the other to each prompt in turn."""
    shares = [0] * len(wanted)
    while budget > 0 and any(share < tokens for share, tokens in zip(shares, wanted, strict=True)):
        for place, tokens in enumerate(wanted):
            more = min(BLOCK_TOKENS, tokens - shares[place], budget)
            shares[place] += more
            budget -= more
    return shares
