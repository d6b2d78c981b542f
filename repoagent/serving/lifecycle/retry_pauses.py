"""When a poll tries a model again whose last load failed, though nothing of it has changed."""

from collections.abc import Container
from typing import Final

__all__ = ["RetryPauses"]

_LONGEST_SECONDS: Final = 300.0


class RetryPauses:
    """Pauses that double from one failure to the next, counted in polls: none, 1, 3, 7, ... up to five minutes.

    What failed may have been a key server that was down for a second. Not thread-safe: one poll runs at a time.
    """

    def __init__(self, poll_seconds: float) -> None:
        self._longest = max(1, int(_LONGEST_SECONDS / poll_seconds))
        self._failures: dict[str, int] = {}
        self._left: dict[str, int] = {}

    def due(self, model: str) -> bool:
        """A poll sees that the last load of ``model`` failed: whether to try again now."""
        left = self._left.get(model, 0)
        if left:
            self._left[model] = left - 1
            return False
        failures = self._failures[model] = self._failures.get(model, 0) + 1
        self._left[model] = min(2**failures - 1, self._longest)
        return True

    def forget_others(self, failed: Container[str]) -> None:
        """The models that are not in ``failed`` begin at the beginning when they fail again."""
        for model in [model for model in self._failures if model not in failed]:
            del self._failures[model], self._left[model]
