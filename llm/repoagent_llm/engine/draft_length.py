"""DraftLength: how many tokens are worth guessing for a text, judged by how many guesses were right lately."""

from typing import Final

__all__ = ["DraftLength"]

# Below this share of right guesses they cost more than they save: a step with guesses takes longer than one without.
_WORTH: Final = 0.25
# What the latest step counts for in the share of right guesses.
_WEIGHT: Final = 0.2
# Steps without a guess, at first and at most, before another one is tried.
_SHORTEST_REST: Final = 2
_LONGEST_REST: Final = 32


class DraftLength:
    """Starts with ``most`` guesses for a step. Depends on the text alone, not on time, so that runs repeat."""

    def __init__(self, most: int) -> None:
        self._most = self._next = most
        self._share = 2 * _WORTH
        self._rest = 0
        self._last_rest = 0

    def take(self) -> int:
        """How many tokens to guess for the step that comes; to be asked once for each."""
        if self._rest:
            self._rest -= 1
            return 0
        return self._next

    def note(self, guessed: int, right: int) -> None:
        """What became of the guesses: where all were right twice as many follow, else one more than were right.

        While few are right, steps without follow each try, twice as many each time, until most are right again.
        """
        self._next = min(self._most, 2 * guessed if right == guessed else right + 1)
        self._share += _WEIGHT * (right / guessed - self._share)
        if self._share < _WORTH:
            self._rest = self._last_rest = min(_LONGEST_REST, max(_SHORTEST_REST, 2 * self._last_rest))
        elif self._share > 2 * _WORTH:
            self._last_rest = 0
