"""Lookahead decoding: drafts from n-grams that were seen before, verified by the model in one run.

A pool maps each token to the n-grams that began with it, from the prompt and from what was generated. The drafts behind
a text's last token are the rest of the latest n-gram that begins with it. The model's own choice decides at each place,
so the text is the one that greedy search writes without drafts; what was drafted right saves steps.
"""

from collections import deque
from collections.abc import Sequence

__all__ = ["Lookahead"]


class Lookahead:
    """The drafter of one text. ``ngram_size``: longest n-gram; ``kept``: how many are kept for each first token."""

    def __init__(self, ngram_size: int, kept: int) -> None:
        self._size = ngram_size
        self._kept = max(1, kept)
        self._pool: dict[int, deque[tuple[int, ...]]] = {}
        self._read = 0

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        """At most ``most`` drafts of what follows ``tokens``; none when nothing like its end was seen."""
        self._learn(tokens)
        known = self._pool.get(tokens[-1])
        if not known or most < 1:
            return []
        before = tokens[-2] if len(tokens) > 1 else None
        # An n-gram that also followed the same token before is the better guess.
        best = next((ngram for ngram in known if ngram[0] == before), known[0])
        return list(best[1 : 1 + most])

    def _learn(self, tokens: Sequence[int]) -> None:
        """Take up the n-grams that have become complete; each is kept with the token before it."""
        for start in range(self._read, len(tokens) - self._size + 1):
            before = tokens[start - 1] if start else -1
            ngram = (before, *tokens[start + 1 : start + self._size])
            known = self._pool.setdefault(tokens[start], deque(maxlen=self._kept))
            if ngram in known:
                known.remove(ngram)
            known.appendleft(ngram)
        self._read = max(self._read, len(tokens) - self._size + 1)
