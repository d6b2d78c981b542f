"""Which request an answer is for, and what the end of a process fails: no process is needed for that."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from repoagent.errors import InternalError, UnavailableError
from repoagent.serving.backends.python.process.channel import Kind, Message
from repoagent.serving.backends.python.process.memory import ProtocolError
from repoagent.serving.backends.python.process.open_requests import (
    OpenRequests,
    RequestsAhead,
    UnsentAnswer,
    WorkItem,
)
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse


class Answers(list[str]):
    """The errors with which requests were answered."""

    def send(self, response: InferResponse | None, final: bool) -> None:
        assert response is not None
        assert final
        self.append(str(response.error))


@pytest.fixture
def open_requests() -> OpenRequests:
    return OpenRequests("m_0", "1")


@pytest.fixture
def answers() -> Answers:
    return Answers()


def _admitted(requests: OpenRequests, answers: Answers, count: int) -> WorkItem:
    """``count`` requests that the process is given at once, each an execution."""
    asked = [InferRequest(Asked("m", inputs={}), answers) for _ in range(count)]
    item = WorkItem([(request,) for request in asked], requests.numbers, lambda *_: None, lambda _: None)
    requests.admit(item)
    return item


def test_the_end_of_a_process_leaves_what_was_admitted_to_those_who_wait_for_it(
    open_requests: OpenRequests, answers: Answers
) -> None:
    _admitted(open_requests, answers, 2)
    open_requests.process_ended()
    assert not answers


def test_the_end_of_a_process_fails_requests_whose_answers_were_going_to_come_later(
    open_requests: OpenRequests, answers: Answers
) -> None:
    _admitted(open_requests, answers, 2)
    open_requests.free()
    open_requests.process_ended()
    assert len(answers) == 2
    assert all("Stub process 'm_0' is not healthy" in error for error in answers)
    open_requests.process_ended()
    assert len(answers) == 2


class _Met(dict[int, Any]):
    """What is open; as soon as it is read or grows, ``other`` comes in between, once."""

    other: Callable[[], object] | None = None

    def __iter__(self) -> Iterator[int]:
        self._meet()
        return super().__iter__()

    def update(self, *more: Any, **named: Any) -> None:
        super().update(*more, **named)
        self._meet()

    def _meet(self) -> None:
        other, self.other = self.other, None
        if other is not None:
            other()


@pytest.mark.parametrize("first", ["the end", "the admission"])
def test_the_end_of_a_process_leaves_what_is_admitted_meanwhile(
    open_requests: OpenRequests, answers: Answers, first: str
) -> None:
    """Threads that were left to chance met in the second order, and not once in the first."""
    open_requests._open = met = _Met()
    admit: Callable[[], object] = partial(_admitted, open_requests, answers, 2)
    begun, met.other = (admit, open_requests.process_ended)[:: -1 if first == "the end" else 1]
    begun()
    assert len(met) == 2
    assert not answers


def test_a_request_that_was_withdrawn_is_not_open(open_requests: OpenRequests, answers: Answers) -> None:
    item = _admitted(open_requests, answers, 1)
    open_requests.withdraw(item)
    open_requests.fail(item.numbers, InternalError("late"))
    assert not answers


def test_what_comes_back_must_have_been_sent_ahead(open_requests: OpenRequests, answers: Answers) -> None:
    first, second = _admitted(open_requests, answers, 2).numbers
    with pytest.raises(ProtocolError):
        open_requests.take_back([first])
    open_requests.take_back([second])
    open_requests.free()
    with pytest.raises(ProtocolError):
        open_requests.take_back([first])


def test_what_was_answered_does_not_come_back(open_requests: OpenRequests, answers: Answers) -> None:
    _, second, third = _admitted(open_requests, answers, 3).numbers
    open_requests.fail([second], InternalError("answered"))
    with pytest.raises(ProtocolError):
        open_requests.take_back([second, third])
    assert open_requests.unanswered([second, third]) == [third]
    open_requests.take_back([third])


def test_only_an_open_request_is_cancelled(open_requests: OpenRequests, answers: Answers) -> None:
    item = _admitted(open_requests, answers, 1)
    ((number, request),) = item.requests
    assert not open_requests.is_cancelled(number)
    request.cancel()
    assert open_requests.is_cancelled(number)
    open_requests.withdraw(item)
    assert not open_requests.is_cancelled(number)


def test_a_question_gets_one_answer(open_requests: OpenRequests) -> None:
    number, answer = open_requests.ask_ready()
    open_requests.answer_ready(number, True, "")
    open_requests.answer_ready(number, False, "again")
    assert answer.result(0) is True


def test_the_end_of_a_process_fails_its_questions(open_requests: OpenRequests) -> None:
    _, answer = open_requests.ask_ready()
    open_requests.process_ended()
    with pytest.raises(UnavailableError):
        answer.result(0)


def test_a_request_that_is_answered_while_it_comes_back_is_one_or_the_other(answers: Answers) -> None:
    """The answer is heard on another thread, which may run between any two steps of this one."""
    runs: list[_Race] = []
    while not runs or runs[-1].heard:
        runs.append(_Race(len(runs), answers))
        assert not (runs[-1].answered and runs[-1].returned), "it is answered, and executed again"
        assert runs[-1].answered == runs[-1].nonsense
        assert runs[-1].open == runs[-1].nonsense, "what does not come back is failed with the process"
    assert {run.answered for run in runs} == {True, False}


class _Race:
    """The second and third of three requests come back; before that step of it, the third is answered."""

    def __init__(self, step: int, answers: Answers) -> None:
        requests = OpenRequests("m_0", "1")
        asked = [InferRequest(Asked("m", inputs={}), answers) for _ in range(3)]
        self.returned: list[int] = []
        item = WorkItem([(one,) for one in asked], requests.numbers, lambda *_: None, self.returned.extend)
        requests.admit(item)
        _, second, self._third = item.numbers
        self._requests = requests
        self._left = step
        self.heard: list[UnsentAnswer | None] = []
        sys.settrace(self._trace)
        try:
            requests.take_back([second, self._third])
            self.nonsense = False
        except ProtocolError:
            self.nonsense = True
        finally:
            sys.settrace(None)
        self.answered = any(answer is not None for answer in self.heard)
        self.open = bool(requests.unanswered([second]))

    def _trace(self, frame: Any, event: str, argument: Any) -> Any:
        if event in ("line", "call"):
            self._left -= 1
            if self._left == -1:
                message = Message(Kind.DONE, None, bytearray())
                self.heard.append(self._requests.answer([self._third, True, None], message))
        return self._trace


MS = 1_000_000


class Heard:
    """What was reported of item executions."""

    def __init__(self) -> None:
        self.executed: list[tuple[int, int, int]] = []
        self.returned: list[int] = []

    def message(self, *numbers: int) -> WorkItem:
        requests = [(InferRequest(Asked("m", inputs={})),) for _ in numbers]
        return WorkItem(requests, iter(numbers), lambda *moment: self.executed.append(moment), self.returned.extend)


def test_a_model_is_given_one_request_at_a_time_until_it_is_known_to_be_quick() -> None:
    ahead = RequestsAhead(16)
    assert ahead.limit == 1
    for _ in range(100):
        ahead.note(MS // 10)
    assert ahead.limit == 16


def test_one_slow_execution_counts_at_once_and_is_forgotten_slowly() -> None:
    ahead = RequestsAhead(16)
    for _ in range(100):
        ahead.note(MS // 10)
    ahead.note(50 * MS)
    assert ahead.limit == 1
    ahead.note(MS // 10)
    assert ahead.limit == 1


@pytest.mark.parametrize(("most", "duration", "limit"), [(16, MS // 2, 4), (1, 1, 1)], ids=["two ms", "turned off"])
def test_what_is_sent_ahead_is_over_in_two_milliseconds(most: int, duration: int, limit: int) -> None:
    ahead = RequestsAhead(most)
    for _ in range(100):
        ahead.note(duration)
    assert ahead.limit == limit


@pytest.mark.parametrize("duration", [0, -5, 1 << 200])
def test_no_duration_that_a_process_reports_breaks_the_limit(duration: int) -> None:
    ahead = RequestsAhead(16)
    for _ in range(3):
        ahead.note(duration)
        assert 1 <= ahead.limit <= 16


def test_a_message_is_over_when_each_execution_was_heard_of() -> None:
    heard = Heard()
    item = heard.message(5, 6, 7)
    item.note(5, 1, 2)
    item.give_back([7])
    over = [item.complete]
    item.note(6, 3, 4)
    assert [*over, item.complete] == [False, True]
    assert heard.executed == [(0, 1, 2), (1, 3, 4)]
    assert heard.returned == [2]


@pytest.mark.parametrize("numbers", [[5], [8], [6, 6], [6, 8], [True], ["6"]], ids=str)
def test_a_process_cannot_give_back_what_was_not_sent_ahead(numbers: list[int]) -> None:
    heard = Heard()
    item = heard.message(5, 6, 7)
    item.note(7, 1, 2)
    with pytest.raises(ProtocolError, match="that were not sent ahead"):
        item.give_back(numbers)
    assert heard.returned == []


def test_a_process_cannot_report_an_execution_twice() -> None:
    item = Heard().message(5, 6)
    item.note(5, 1, 2)
    with pytest.raises(LookupError):
        item.note(5, 1, 2)


@pytest.mark.parametrize(("begun", "left"), [(0, [6, 7]), (5, [6, 7]), (6, [7]), (7, []), ((1 << 64) - 1, [])])
def test_what_another_process_may_do_never_has_the_first_one(begun: int, left: list[int]) -> None:
    assert Heard().message(5, 6, 7).not_begun(begun) == left


def test_a_single_execution_comes_back_from_nowhere() -> None:
    item = WorkItem([[InferRequest(Asked("m", inputs={}))] * 2], iter((5, 6)), lambda *_: None, None)
    assert not item.divisible
    assert item.not_begun(0) == []
    with pytest.raises(ProtocolError):
        item.give_back([6])
