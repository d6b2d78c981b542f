"""In the server: what a process is given to do at once, and what comes of it."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from repoagent.serving.backends.python.process.channel import Kind, Message
from repoagent.serving.backends.python.process.codec import RESCHEDULED, Packer, request_body
from repoagent.serving.backends.python.process.open_executions import Executed, Outstanding, Returned
from repoagent.serving.requests.request import InferRequest, InferResponse

__all__ = ["UnsentAnswer", "WorkItem", "is_last"]

_models: Final = logging.getLogger("repoagent.models")


class WorkItem:
    """Executions for a process, each of one or more requests, under numbers that nothing else has."""

    def __init__(
        self,
        executions: Sequence[Sequence[InferRequest]],
        numbers: Iterator[int],
        executed: Executed,
        returned: Returned | None,
    ) -> None:
        self._executions = [[(next(numbers), request) for request in requests] for requests in executions]
        self.outstanding: Final = Outstanding(
            [[number for number, _ in execution] for execution in self._executions], executed, returned
        )
        self.packer: Final = Packer()
        self.body: list[Any] = []
        self.over: Callable[[Exception | None], None] = _nothing
        """Called when the process can be given others, by whoever began it without waiting."""

    @property
    def requests(self) -> list[tuple[int, InferRequest]]:
        """All of them, and their numbers."""
        return [entry for execution in self._executions for entry in execution]

    def write(self) -> None:
        """Make ``body``.

        Raises:
            RepoAgentError, TypeError, ValueError: a request cannot be written.
        """
        bodies = [[request_body(*entry, self.packer) for entry in execution] for execution in self._executions]
        self.body = [_models.getEffectiveLevel(), bodies]


class UnsentAnswer(NamedTuple):
    """An answer that has not been sent yet."""

    request: InferRequest
    response: InferResponse | None
    final: int

    def send(self) -> None:
        self.request.rescheduled = self.final == RESCHEDULED
        self.request.send(self.response, bool(self.final))


def is_last(message: Message) -> bool:
    """Whether the process has done all that it was given; what makes no sense is the end, too."""
    body = message.body
    return message.kind != Kind.DONE or not (isinstance(body, list) and len(body) == 4 and body[3] is False)


def _nothing(_: Exception | None) -> None:
    """Whoever waits for it needs no call."""
