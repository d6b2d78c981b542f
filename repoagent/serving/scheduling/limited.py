"""Instances whose executions wait for resources."""

import time
from collections.abc import Sequence

from repoagent.errors import UnavailableError
from repoagent.serving.instances import Instance
from repoagent.serving.pace import unpredictable
from repoagent.serving.request import InferRequest, InferResponse
from repoagent.serving.scheduling.rate_limiter import Ticket
from repoagent.serving.senders import answer_error
from repoagent.serving.statistics import FailureReason, ModelStatistics

__all__ = ["LimitedInstance"]


class LimitedInstance:
    """``inner``, which has what ``ticket`` stands for while it executes. The thread that has the instance waits."""

    def __init__(self, inner: Instance, ticket: Ticket, statistics: ModelStatistics) -> None:
        self._inner = inner
        self._ticket = ticket
        self._statistics = statistics
        self.pace = unpredictable()  # However quick the model is: nobody knows how long it has to wait.

    def call(self, request: InferRequest) -> InferResponse:
        with self._ticket.held():
            return self._inner.call(request)

    def execute(self, requests: Sequence[InferRequest]) -> None:
        try:
            with self._ticket.held():
                self._inner.execute(requests)
        except UnavailableError as error:  # What it executes never raises: this is the ticket.
            for request in requests:
                if not request.placeholder:
                    self._statistics.record_failure(request.arrival_ns, time.monotonic_ns(), FailureReason.OTHER)
                    answer_error(request, error)

    def rehearse(self, request: InferRequest) -> None:
        with self._ticket.held():
            self._inner.rehearse(request)

    def close(self) -> None:
        self._ticket.close()
        self._inner.close()
