"""Which tokens of the segments of a step want logits."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from repoagent.executor.runner.protocol import Logits, Segment

__all__ = ["is_single", "places_wanted", "rows_asked", "rows_wanted"]


def is_single(segment: Segment) -> bool:
    return len(segment.tokens) == 1 and segment.embeddings is None


def rows_asked(segments: Sequence[Segment], where: Mapping[int, int]) -> list[int]:
    """In their order the rows whose segments want logits."""
    return sorted(row for row, i in where.items() if segments[i].logits is not Logits.NONE)


def places_wanted(pieces: Sequence[Segment], width: int, index: npt.NDArray[np.int64]) -> list[slice]:
    """Write into ``index`` which tokens of padded pieces want logits; for each piece where it did."""
    places, begin = [], 0
    for line, piece in enumerate(pieces):
        end, wanted = line * width + len(piece.tokens), rows_wanted(piece)
        index[begin : begin + wanted] = np.arange(end - wanted, end)
        places.append(slice(begin, begin + wanted))
        begin += wanted
    return places


def rows_wanted(segment: Segment) -> int:
    if segment.logits is Logits.ALL:
        return len(segment.tokens)
    return 1 if segment.logits is Logits.LAST else 0
