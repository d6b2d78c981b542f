"""Pace: how many tokens are worth guessing for a text, judged by how many guesses were right lately."""

from typing import Final

__all__ = ["Pace"]

# Steps without a guess, at most, before another one is tried.
_LONGEST_REST: Final = 32


class Pace:
    """Starts with ``most`` guesses for a step. Depends on the text alone, not on time, so that runs repeat."""

    def __init__(self, most: int) -> None:
        self._most = self._next = most
        self._misses = 0
        self._rest = 0

    def take(self) -> int:
        """How many tokens to guess for the step that comes; to be asked once for each."""
        if self._rest:
            self._rest -= 1
            return 0
        return self._next

    def note(self, guessed: int, right: int) -> None:
        """What became of the guesses: where all were right twice as many follow, else one more than were right.

        After misses in a row the next one is tried after 1, 2, 4, ... steps without.
        """
        self._next = min(self._most, 2 * guessed if right == guessed else right + 1)
        self._misses = 0 if right else self._misses + 1
        if self._misses > 1:
            self._rest = min(_LONGEST_REST, 2 ** (self._misses - 2))
