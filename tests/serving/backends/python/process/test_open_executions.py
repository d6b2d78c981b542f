"""What is given to a process at once, and how much: no process is needed for that."""

import pytest

from repoagent.serving.backends.python.process.memory import ProtocolError
from repoagent.serving.backends.python.process.open_executions import Outstanding, RequestsAhead

pytestmark = pytest.mark.slow

MS = 1_000_000


class Heard:
    """What was reported of outstanding executions."""

    def __init__(self) -> None:
        self.executed: list[tuple[int, int, int]] = []
        self.returned: list[int] = []

    def message(self, *numbers: int) -> Outstanding:
        return Outstanding(
            [[number] for number in numbers], lambda *moment: self.executed.append(moment), self.returned.extend
        )


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


def test_what_is_sent_ahead_is_over_in_two_milliseconds() -> None:
    ahead = RequestsAhead(16)
    for _ in range(100):
        ahead.note(MS // 2)
    assert ahead.limit == 4


def test_the_operator_can_turn_it_off() -> None:
    ahead = RequestsAhead(1)
    for _ in range(100):
        ahead.note(1)
    assert ahead.limit == 1


@pytest.mark.parametrize("duration", [0, -5, 1 << 200])
def test_no_duration_that_a_process_reports_breaks_the_limit(duration: int) -> None:
    ahead = RequestsAhead(16)
    for _ in range(3):
        ahead.note(duration)
        assert 1 <= ahead.limit <= 16


def test_a_message_is_over_when_each_execution_was_heard_of() -> None:
    heard = Heard()
    outstanding = heard.message(5, 6, 7)
    outstanding.note(5, 1, 2)
    outstanding.give_back([7])
    over = [outstanding.over]
    outstanding.note(6, 3, 4)
    assert [*over, outstanding.over] == [False, True]
    assert heard.executed == [(0, 1, 2), (1, 3, 4)]
    assert heard.returned == [2]


@pytest.mark.parametrize("numbers", [[5], [8], [6, 6], [6, 8], [True], ["6"]], ids=str)
def test_a_process_cannot_give_back_what_was_not_sent_ahead(numbers: list[int]) -> None:
    heard = Heard()
    outstanding = heard.message(5, 6, 7)
    outstanding.note(7, 1, 2)
    with pytest.raises(ProtocolError, match="that were not sent ahead"):
        outstanding.give_back(numbers)
    assert heard.returned == []


def test_a_process_cannot_report_an_execution_twice() -> None:
    outstanding = Heard().message(5, 6)
    outstanding.note(5, 1, 2)
    with pytest.raises(LookupError):
        outstanding.note(5, 1, 2)


@pytest.mark.parametrize(("begun", "left"), [(0, [6, 7]), (5, [6, 7]), (6, [7]), (7, []), ((1 << 64) - 1, [])])
def test_what_another_process_may_do_never_has_the_first_one(begun: int, left: list[int]) -> None:
    assert Heard().message(5, 6, 7).unbegun(begun) == left


def test_a_single_execution_comes_back_from_nowhere() -> None:
    outstanding = Outstanding([[5, 6]], lambda *_: None, None)
    assert not outstanding.divisible
    assert outstanding.unbegun(0) == []
    with pytest.raises(ProtocolError):
        outstanding.give_back([6])
