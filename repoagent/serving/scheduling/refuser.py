"""Answering requests that are not executed, and counting them."""

from repoagent.errors import RepoAgentError
from repoagent.serving.measuring.statistics import ModelStatistics
from repoagent.serving.requests.senders import answer_error
from repoagent.serving.scheduling.clock import Clock
from repoagent.serving.scheduling.steps import Refusal

__all__ = ["Refuser"]


class Refuser:
    """The one place where a scheduler turns requests away."""

    def __init__(self, statistics: ModelStatistics, clock: Clock) -> None:
        self._statistics = statistics
        self._clock = clock

    def count(self, refusal: Refusal) -> RepoAgentError:
        """Count ``refusal`` and return its error for a caller that waits."""
        self._statistics.record_failure(refusal.request.arrival_ns, self._clock.now_ns(), refusal.reason)
        return refusal.error

    def answer(self, refusal: Refusal) -> None:
        """Count ``refusal`` and answer the request with it."""
        answer_error(refusal.request, self.count(refusal))
