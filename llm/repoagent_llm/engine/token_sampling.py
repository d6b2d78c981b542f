"""The arithmetic of drawing one token from one row of logits: top-k, top-p, min-p. Functions without a state.

What is kept is never sorted as a whole. Top-k finds the largest tokens from the largest of each block. Top-p draws from
all tokens and draws again when the token is not among those kept, which leaves exactly their probabilities; whether it
is takes one sum over the tokens above it. ``draw_plain`` sorts everything, for tests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from repoagent_llm.types.executor_errors import CheckError, EngineError

Row = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]
Sums = npt.NDArray[np.float64]
# Top-k up to this many tokens is found by blocks.
_HEAD: Final = 256
# A flat distribution with a small top-p may refuse most draws; then it is sorted after all.
_TRIES: Final = 8
#: Tokens of a block; a row's running sums are taken of blocks first.
BLOCK: Final = 256
_NOTHING_FOLLOWS: Final = "no token can follow: every logit is -inf, or one is infinite or not a number"
_LOG2_E: Final = np.float32(np.log2(np.e))


@dataclass(slots=True)
class Limits:
    """Which tokens may be drawn. ``top_k`` 0: any number; ``top_p`` 1: any probability; ``min_p`` 0: any."""

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def nothing_follows(*rows: Row) -> CheckError | EngineError:
    """Why a request fails whose rows of logits leave no choice: its own bans, if each token of them is banned."""
    banned = all(np.isneginf(row).all() for row in rows)
    return CheckError(_NOTHING_FOLLOWS) if banned else EngineError(_NOTHING_FOLLOWS)


def log_softmax(row: Row) -> Row:
    """Log-probabilities of a row; all NaN, without a warning, where nothing can follow."""
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = row - row.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum(dtype=np.float64)), np.float32)


def likeliest(log_probs: Row, count: int) -> list[tuple[int, float]]:
    """At most ``count`` tokens with their log-probabilities, the likeliest first; impossible ones are left out."""
    count = min(count, len(log_probs))
    if not count:
        return []
    top = np.argpartition(log_probs, len(log_probs) - count)[len(log_probs) - count :]
    top = top[np.argsort(-log_probs[top], kind="stable")]
    return [(int(token), float(log_probs[token])) for token in top if np.isfinite(log_probs[token])]


def rank_of(log_probs: Row, token: int) -> int:
    """The place of ``token`` among all, from 1 on; the last of those that are equally likely."""
    return int(np.count_nonzero(log_probs >= log_probs[token]))


def draw(row: Row, limits: Limits, random: Callable[[], float], scratch: Row | None = None) -> int:
    """A token; ``random`` gives numbers in [0, 1), one or several of which are used.

    ``scratch``: an array like ``row`` that may be overwritten; with it nothing large is allocated.
    """
    size = len(row)
    if 0 < limits.top_k <= min(_HEAD, size - 1):
        tokens = _largest_by_blocks(row, limits.top_k)
        return _pick(tokens, _exponentials(row[tokens], row[tokens[0]]), limits, random())
    weights = _exponentials(row, row.max(), scratch)
    if 0 < limits.top_k < size or limits.min_p > 0.0:
        return _pick_by_value(weights, min(limits.top_k or size, size), limits, random())
    sums = np.add.reduceat(weights, _block_starts(size)).cumsum(dtype=np.float64)
    if limits.top_p >= 1.0:
        return _place_in_blocks(weights, sums, random())
    for _ in range(_TRIES):
        token = _place_in_blocks(weights, sums, random())
        if _weight_above(weights, token) < limits.top_p * sums[-1]:
            return token
    return _pick_by_value(weights, size, limits, random())


def _exponentials(row: Row, largest: np.float32 | Row, out: Row | None = None) -> Row:
    """exp(row - largest). NumPy's exp2 takes a third of the time of its exp for 32-bit floats.

    All NaN, without a warning, where ``largest`` is infinite: nothing can be drawn from such a row, and a warning would
    be one more line of the log for what its request is answered anyway. One far below ``largest`` does not warn either.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        weights = np.subtract(row, largest, out=out)
        np.multiply(weights, _LOG2_E, out=weights)
    return np.exp2(weights, out=weights)


@cache
def _block_starts(size: int) -> Places:
    """Where each block of a row of ``size`` tokens begins."""
    return np.arange(0, size, BLOCK)


def _place_in_blocks(weights: Row, sums: Sums, uniform: float) -> int:
    """Where ``uniform`` falls on the running sums of all weights; ``sums``: those at the ends of blocks."""
    # Rounding must not lead behind the end: tokens there may have no weight.
    target = min(uniform * sums[-1], np.nextafter(sums[-1], 0.0))
    block = int(np.searchsorted(sums, target, side="right"))
    start = block * BLOCK
    inside = weights[start : start + BLOCK].cumsum(dtype=np.float64)
    target = min(target - (sums[block - 1] if block else 0.0), np.nextafter(inside[-1], 0.0))
    return start + int(np.searchsorted(inside, target, side="right"))


def _weight_above(weights: Row, token: int) -> float:
    """The weight of all tokens that come before ``token`` in the order from the most to the least likely."""
    weight = weights[token]
    equal = int(np.count_nonzero(weights[:token] == weight))
    return float(np.dot(weights, weights > weight)) + equal * float(weight)


def _largest_by_blocks(row: Row, count: int) -> Places:
    """The ``count`` largest tokens, sorted. Each of the ``count`` blocks with the largest maxima has one at least."""
    width = max(1, len(row) // (4 * count))
    blocks = len(row) // width
    # A block is every so-manieth token, which lets NumPy take the maxima of many blocks at once.
    maxima = row[: blocks * width].reshape(width, blocks).max(axis=0)
    edge = np.partition(maxima, blocks - count)[blocks - count]
    tokens = np.flatnonzero(row >= edge)
    return tokens[np.argsort(-row[tokens], kind="stable")][:count]


def draw_plain(row: Row, limits: Limits, uniform: float) -> int:
    """The token that ``uniform`` picks from those that are kept, laid out from the most to the least likely."""
    weights = _exponentials(row, row.max())
    count = limits.top_k if 0 < limits.top_k < len(row) else len(row)
    return _pick(*_largest(weights, count), limits, uniform)


def distribution(row: Row, limits: Limits) -> npt.NDArray[np.float64]:
    """The probability with which ``draw`` picks each token."""
    weights = _exponentials(row, row.max())
    count = limits.top_k if 0 < limits.top_k < len(row) else len(row)
    # Sorting weights alone takes a tenth of the time of sorting tokens by them.
    ordered = np.sort(weights)[::-1][:count]
    running = ordered.cumsum(dtype=np.float64)
    kept = _kept(ordered, running, limits, float(running[-1]))
    chosen = weights > ordered[kept - 1]
    equal = np.flatnonzero(weights == ordered[kept - 1])
    chosen[equal[: kept - int(np.count_nonzero(chosen))]] = True
    return np.asarray(np.where(chosen, weights, np.float32(0.0)) / running[kept - 1], np.float64)


def draw_from(weights: npt.NDArray[np.float64], uniform: float) -> int:
    """The token that ``uniform`` picks where token i has ``weights[i]``."""
    return _place(weights.cumsum(), uniform)


def _largest(weights: Row, count: int) -> tuple[Places, Row]:
    """The ``count`` largest weights, sorted, and their tokens; of equal weights the lower tokens first."""
    tokens = np.argsort(-weights, kind="stable")[:count]
    return tokens, weights[tokens]


def _kept(ordered: Row, running: npt.NDArray[np.float64], limits: Limits, total: float) -> int:
    """How many of the sorted weights top-p and min-p leave."""
    kept = len(ordered)
    if limits.top_p < 1.0:
        kept = int(np.searchsorted(running, limits.top_p * total)) + 1
    if limits.min_p > 0.0:
        kept = min(kept, int(np.count_nonzero(ordered >= np.float32(limits.min_p) * ordered[0])))
    return max(1, min(kept, len(ordered)))


def _pick(tokens: Places, ordered: Row, limits: Limits, uniform: float) -> int:
    """Cut sorted weights, then pick."""
    running = ordered.cumsum(dtype=np.float64)
    kept = _kept(ordered, running, limits, float(running[-1]))
    return int(tokens[_place(running[:kept], uniform)])


def _pick_by_value(weights: Row, count: int, limits: Limits, uniform: float) -> int:
    """The same by sorting the weights alone, which is much faster than sorting tokens by their weights."""
    ordered = np.sort(weights)[::-1][:count]
    running = ordered.cumsum(dtype=np.float64)
    kept = _kept(ordered, running, limits, float(running[-1]))
    place = _place(running[:kept], uniform)
    value = ordered[place]
    first = int(np.searchsorted(-ordered, -value))
    return int(np.flatnonzero(weights == value)[place - first])


def _place(running: npt.NDArray[np.float64], uniform: float) -> int:
    """Where ``uniform`` falls on running sums."""
    return min(int(np.searchsorted(running, uniform * running[-1], side="right")), len(running) - 1)
