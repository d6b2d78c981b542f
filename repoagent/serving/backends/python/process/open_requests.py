"""In the server: the requests of one instance that its process has not answered yet, each under a number."""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from repoagent.errors import InternalError, RepoAgentError, UnavailableError
from repoagent.serving.backends.python.process.channel import Message
from repoagent.serving.backends.python.process.codec import RESCHEDULED, Packer, request_body, response_of
from repoagent.serving.backends.python.process.memory import ProtocolError
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.senders import answer_error

Executed = Callable[[int, int, int], None]
"""Called with the place of an execution among those given, and when it began and ended, before it is answered."""
Returned = Callable[[Sequence[int]], None]
"""Called with the places of executions that were not begun and are not going to be."""

_AHEAD_NS: Final = 2_000_000


class RequestsAhead:
    """How many executions a process is given at once: as many as are usually over in two milliseconds, up to ``most``.

    So nothing waits long where neither its timeout nor its cancellation is looked at, nor another instance takes it.
    What is usual rises at once and falls slowly: a model that is slow now and then is given one at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._usual_ns = _AHEAD_NS

    @property
    def limit(self) -> int:
        return max(1, min(self._most, _AHEAD_NS // max(1, self._usual_ns)))

    def note(self, duration_ns: int) -> None:
        """An execution took so long."""
        self._usual_ns = max(duration_ns, self._usual_ns - (self._usual_ns >> 3))


_models: Final = logging.getLogger("repoagent.models")


class WorkItem:
    """Executions for a process, each of one or more requests, under numbers that nothing else has.

    Each execution is known by the number of its first request. Those that are ``returned`` were not begun; None: they
    cannot be.
    """

    def __init__(
        self,
        executions: Sequence[Sequence[InferRequest]],
        numbers: Iterator[int],
        executed: Executed,
        returned: Returned | None,
    ) -> None:
        self._executions = [[(next(numbers), request) for request in requests] for requests in executions]
        self.requests: Final = [entry for execution in self._executions for entry in execution]
        self.numbers: Final = [number for number, _ in self.requests]
        self._left = {execution[0][0]: place for place, execution in enumerate(self._executions)}
        self._executed = executed
        self._returned = returned
        self.packer: Final = Packer()
        self.body: list[Any] = []
        self.over: Callable[[Exception | None], None] = lambda _: None
        """Called when the process can be given others, by the one that began it without waiting."""

    def write(self) -> None:
        """Make ``body``; ``RepoAgentError``, ``TypeError`` or ``ValueError`` if a request cannot be written."""
        bodies = [[request_body(*entry, self.packer) for entry in execution] for execution in self._executions]
        self.body = [_models.getEffectiveLevel(), bodies]

    @property
    def complete(self) -> bool:
        """Whether something is known of every execution."""
        return not self._left

    @property
    def divisible(self) -> bool:
        """Whether executions of it may come back."""
        return self._returned is not None and len(self._left) > 1

    def note(self, number: int, begin_ns: int, end_ns: int) -> None:
        """That execution has ended. Raises ``LookupError`` if it was not given, or had been heard of, ``TypeError`` if
        these are no moments."""
        if type(begin_ns) is not int or type(end_ns) is not int:
            raise TypeError("moments are whole numbers")
        self._executed(self._left.pop(number), begin_ns, end_ns)

    def not_begun(self, begun: int) -> list[int]:
        """What another process may do, if this one had begun number ``begun``, or noted nothing.

        The first one counts as begun. What comes back is next time the first one of its message, so no request
        comes back twice, whatever a process notes.
        """
        if self._returned is None:
            return []
        return [number for number in self._left if number > max(begun, self.numbers[0])]

    def give_all_back(self) -> None:
        """Nothing was sent of it."""
        assert self._returned is not None
        places, self._left = list(self._left.values()), {}
        self._returned(places)

    def give_back(self, numbers: Sequence[int]) -> None:
        """These are not going to be begun; ``ProtocolError`` if they were not given, or had been heard of."""
        ahead = all(number in self._left and number != self.numbers[0] for number in numbers)
        if self._returned is None or len(set(numbers)) < len(numbers) or not ahead:
            raise ProtocolError("requests come back that were not sent ahead")
        self._returned([self._left.pop(number) for number in numbers])


class UnsentAnswer(NamedTuple):
    """An answer that has not been sent yet."""

    request: InferRequest
    response: InferResponse | None
    final: int

    def send(self) -> None:
        self.request.rescheduled = self.final == RESCHEDULED
        self.request.send(self.response, bool(self.final))


class OpenRequests:
    """Finds the request of each answer, and fails what a process that has ended leaves behind.

    The questions whether the model is ready share the numbers.
    """

    def __init__(self, name: str, model_version: str) -> None:
        self._name = name
        self._model_version = model_version
        self._open: dict[int, InferRequest] = {}
        self._admitted: WorkItem | None = None
        """Of the open requests, those whose thread or loop deals with the end of the process itself."""
        self._questions: dict[int, Future[bool]] = {}
        self.numbers: Final = itertools.count(1)
        """Where the numbers come from."""
        self.answered = False
        """Set when a process has answered a request."""

    def admit(self, item: WorkItem) -> None:
        """The process is about to be given ``item``."""
        self._admitted = item
        self._open.update(item.requests)

    def withdraw(self, item: WorkItem) -> None:
        """Nothing was done of ``item``."""
        for number in item.numbers:
            self._open.pop(number, None)
        self._admitted = None

    def free(self) -> None:
        """What was admitted is over, and something else can be. Its late answers still find their requests."""
        self._admitted = None

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
        return [number for number in numbers if number in self._open]

    def take_back(self, numbers: Sequence[int]) -> None:
        """The process has not begun these, and is not going to. Raises ``ProtocolError`` if they were not given, or
        have been answered: another process would execute them again."""
        admitted = self._admitted
        if admitted is None:
            raise ProtocolError("requests come back that were not sent ahead")
        taken: dict[int, InferRequest] = {}
        try:
            for number in numbers:  # Who takes a request out deals with it; another thread may hear of its answer now.
                request = self._open.pop(number, None)
                if request is None:
                    raise ProtocolError("requests come back that were not sent ahead")
                taken[number] = request
            admitted.give_back(numbers)
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
        admitted = self._admitted  # Read last: what is admitted meanwhile is set here before it is open.
        kept = set(admitted.numbers if admitted is not None else ())
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

    def answer_ready(self, number: int, ready: bool, error: str) -> None:
        """The answer to the question ``number``; ``error``: what the model's code raised."""
        question = self._questions.pop(number, None)
        if question is None:
            return
        if error:
            question.set_exception(InternalError(error))
        else:
            question.set_result(ready)
