"""Drawing a token from each of many rows at once: what ``drawing.draw`` draws from each, number by number.

One call of NumPy for all rows instead of one for each: with small vocabularies the calls are what takes time. A row
that nothing can be drawn from, or not in this way, gets None.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from repoagent.executor.engine.drawing import (
    BLOCK,
    TRIES,
    Limits,
    block_starts,
    exponentials,
    pick_by_value,
    weight_above,
)

__all__ = ["draw_largest_together", "draw_together"]

Rows = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]
Sums = npt.NDArray[np.float64]
Random = Callable[[], float]


def draw_together(rows: Rows, top_p: Sequence[float], randoms: Sequence[Random]) -> list[int | None]:
    """A token for each row [rows, vocabulary], which are overwritten, as ``draw`` does with top-p alone."""
    maxima = rows.max(axis=1)
    usable = np.isfinite(maxima)
    weights = exponentials(rows, np.where(usable, maxima, np.float32(0))[:, None], rows)
    ends = _block_ends(weights)
    limits = (np.array(top_p) * ends[:, -1]).tolist()
    tokens: list[int | None] = [None] * len(rows)
    left = np.flatnonzero(usable).tolist()
    for _ in range(TRIES):
        if not left:
            return tokens
        drawn = _places_in_blocks(weights, ends, left, [randoms[row]() for row in left])
        refused = []
        for row, token in zip(left, drawn, strict=True):
            tokens[row] = token
            if weight_above(weights[row], token) >= limits[row]:
                refused.append(row)
        left = refused
    for row in left:
        tokens[row] = pick_by_value(weights[row], rows.shape[1], Limits(top_p=top_p[row]), randoms[row]())
    return tokens


def _block_ends(weights: Rows) -> Sums:
    """Running sums of each row's weights: 0, then those at the ends of blocks."""
    blocks = np.add.reduceat(weights, block_starts(weights.shape[1]), axis=1)
    ends = np.zeros((len(weights), blocks.shape[1] + 1))
    np.cumsum(blocks, axis=1, dtype=np.float64, out=ends[:, 1:])
    return ends


def _places_in_blocks(weights: Rows, ends: Sums, which: Sequence[int], uniforms: Sequence[float]) -> list[int]:
    """Where ``uniforms`` fall on the running sums of the rows ``which``."""
    if len(which) < len(ends):
        ends = ends[which]
    # Rounding must not lead behind the end: tokens there may have no weight.
    targets = np.minimum(np.array(uniforms) * ends[:, -1], np.nextafter(ends[:, -1], 0.0))
    blocks = (ends[:, 1:] <= targets[:, None]).sum(axis=1)
    running = np.zeros((len(which), BLOCK))
    starts = (blocks * BLOCK).tolist()
    for line, (row, start) in enumerate(zip(which, starts, strict=True)):
        inside = weights[row, start : start + BLOCK]
        running[line, : len(inside)] = inside
    np.cumsum(running, axis=1, out=running)
    targets = np.minimum(targets - ends[np.arange(len(which)), blocks], np.nextafter(running[:, -1], 0.0))
    inside_blocks = (running <= targets[:, None]).sum(axis=1).tolist()
    return [start + place for start, place in zip(starts, inside_blocks, strict=True)]


def draw_largest_together(
    rows: Rows, top_k: int, top_p: Sequence[float], randoms: Sequence[Random]
) -> list[int | None]:
    """A token for each row [rows, vocabulary], as ``draw`` does with a top-k less than the vocabulary, and top-p."""
    tokens, values = _largest_by_blocks(rows, top_k)
    usable = np.isfinite(values[:, 0])
    values[~usable] = 0.0
    running = exponentials(values, values[:, :1]).cumsum(axis=1, dtype=np.float64)
    shares = np.array(top_p)
    kept = np.minimum((running < (shares * running[:, -1])[:, None]).sum(axis=1) + 1, top_k)
    kept[shares >= 1.0] = top_k
    lines = np.arange(len(rows))
    uniforms = [random() if good else 0.0 for random, good in zip(randoms, usable.tolist(), strict=True)]
    targets = uniforms * running[lines, kept - 1]
    places = np.minimum((running <= targets[:, None]).sum(axis=1), kept - 1)
    drawn = tokens[lines, places].tolist()
    return [token if good else None for token, good in zip(drawn, usable.tolist(), strict=True)]


def _largest_by_blocks(rows: Rows, count: int) -> tuple[Places, Rows]:
    """The ``count`` largest tokens of each row, sorted, and their values; of equal values the lower tokens first.

    The first value is infinite where the row has not ``count`` blocks with finite maxima, or has an infinite one.
    """
    lines, size = rows.shape
    width = max(1, size // (4 * count))
    blocks = size // width
    # A block is every so-manieth token. Each of the ``count`` blocks with the largest maxima has one of them at least.
    maxima = rows[:, : blocks * width].reshape(lines, width, blocks).max(axis=1)
    edges = np.partition(maxima, blocks - count, axis=1)[:, blocks - count]
    edges[~np.isfinite(edges)] = np.inf
    found = np.flatnonzero(rows >= edges[:, None])  # much faster than nonzero of the same
    line = found // size
    token = found - line * size
    counts = np.bincount(line, minlength=lines)
    place = np.arange(len(line)) - np.repeat(counts.cumsum() - counts, counts)
    # Rows side by side, what they have less than the longest filled with what sorts last.
    shape = lines, max(count, int(counts.max()))
    values, tokens = np.full(shape, -np.inf, np.float32), np.zeros(shape, np.int64)
    values[line, place] = rows.ravel()[found]
    tokens[line, place] = token
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    across = np.arange(lines)[:, None]
    return tokens[across, order], values[across, order]
