"""StepCost: what a step of one packed run costs, by how many tokens it has."""

from typing import Final

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
