"""In the server: the requests of one instance that its process has not answered yet, each under a number."""

import itertools
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Final

from repoagent.errors import InternalError, RepoAgentError, UnavailableError
from repoagent.serving.backends.python.process.channel import Message
from repoagent.serving.backends.python.process.codec import response_of
from repoagent.serving.backends.python.process.memory import ProtocolError
from repoagent.serving.backends.python.process.open_executions import Outstanding
from repoagent.serving.backends.python.process.work_item import UnsentAnswer, WorkItem
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.requests.senders import answer_error

__all__ = ["OpenRequests"]


class OpenRequests:
    """Finds the request of each answer, and fails what a process that has ended leaves behind.

    The questions whether the model is ready share the numbers. Implements ``Requests``, for what a process reports.
    """

    def __init__(self, name: str, model_version: str) -> None:
        self._name = name
        self._model_version = model_version
        self._open: dict[int, InferRequest] = {}
        self._outstanding: Outstanding | None = None
        """Those of the open requests whose thread or loop deals with the end of the process itself."""
        self._questions: dict[int, Future[bool]] = {}
        self.numbers: Final = itertools.count(1)
        """Where the numbers come from."""
        self.answered = False
        """Set when a process has answered a request."""

    def admit(self, item: WorkItem) -> None:
        """The process is about to be given ``item``."""
        self._outstanding = item.outstanding
        self._open.update(item.requests)

    def withdraw(self, item: WorkItem) -> None:
        """Nothing was done of ``item``."""
        self._drop(item.outstanding.numbers)
        self._outstanding = None

    def free(self) -> None:
        """What was admitted is over, and something else can be. Its late answers still find their requests."""
        self._outstanding = None

    def answer(self, body: list[Any], message: Message) -> UnsentAnswer | None:
        """The answer in ``body``, for its request; None if the request has had its last one."""
        number, response, final = response_of(body, message.payload)
        request = self._open.pop(number, None) if final else self._open.get(number)
        if request is None:
            return None
        if response is not None:
            response.id, response.model_name = request.asked.id, request.model_name
            response.model_version = self._model_version
            self.answered = True
        return UnsentAnswer(request, response, final)

    def respond(self, body: list[Any], message: Message) -> None:
        """Pass a response on to its request; one that comes after the last is dropped."""
        answer = self.answer(body, message)
        if answer is not None:
            answer.send()

    def is_cancelled(self, number: int) -> bool:
        request = self._open.get(number)
        return request is not None and request.cancelled

    def unanswered(self, numbers: Iterable[int]) -> list[int]:
        """Those of ``numbers`` that are still open."""
        return [number for number in numbers if number in self._open]

    def take_back(self, numbers: Sequence[int]) -> None:
        """The process has not begun these, and is not going to.

        Raises:
            ProtocolError: they were not given, or have been answered: another process would execute them again.
        """
        outstanding = self._outstanding
        if outstanding is None:
            raise ProtocolError("requests come back that were not sent ahead")
        taken: dict[int, InferRequest] = {}
        try:
            for number in numbers:  # Who takes a request out deals with it; another thread may hear of its answer now.
                request = self._open.pop(number, None)
                if request is None:
                    raise ProtocolError("requests come back that were not sent ahead")
                taken[number] = request
            outstanding.give_back(numbers)
        except BaseException:
            self._open.update(taken)  # They are failed with the process.
            raise

    def fail(self, numbers: Iterable[int], error: RepoAgentError) -> None:
        """Answer those of ``numbers`` that are still open with ``error``."""
        for number in numbers:
            request = self._open.pop(number, None)
            if request is not None:
                answer_error(request, error, self._model_version)

    def fail_unhealthy(self, numbers: Iterable[int]) -> None:
        """Answer those of ``numbers`` that are still open: their process has ended."""
        error = InternalError(
            f"Failed to process the request(s) for model instance '{self._name}', message: Stub process "
            f"'{self._name}' is not healthy."
        )
        self.fail(numbers, error)

    def process_ended(self) -> None:
        """Fail what the process worked on, but for what the thread or loop that waits for it deals with."""
        for number in list(self._questions):
            question = self._questions.pop(number, None)
            if question is not None:
                question.set_exception(UnavailableError(f"Stub process '{self._name}' is not healthy"))
        numbers = list(self._open)
        outstanding = self._outstanding  # Read last: what is admitted meanwhile is set here before it is open.
        kept = set(outstanding.numbers if outstanding is not None else ())
        self.fail_unhealthy([number for number in numbers if number not in kept])

    def ask_ready(self) -> tuple[int, Future[bool]]:
        """The number of a new question whether the model is ready, and what will hold the answer.

        From now on the end of the process fails the question.
        """
        number, question = next(self.numbers), Future[bool]()
        self._questions[number] = question
        return number, question

    def drop_question(self, number: int) -> None:
        """There is no process to ask."""
        self._questions.pop(number, None)

    def heard_ready(self, number: int, ready: bool, error: str) -> None:
        """The answer to the question ``number``; ``error``: what the model's code raised."""
        question = self._questions.pop(number, None)
        if question is None:
            return
        if error:
            question.set_exception(InternalError(error))
        else:
            question.set_result(ready)

    def _drop(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._open.pop(number, None)
