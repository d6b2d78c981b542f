from typing import Any

import pytest

from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.scheduling.sequence_table import SequenceTable, Slot
from repoagent.serving.scheduling.steps import Entry

IDLE = 1000


def entry(sequence: int | str, flags: str = "", timeout_us: int = 0, now: int = 0) -> Entry:
    request = InferRequest(
        Asked(
            "m",
            {},
            correlation_id=sequence,
            sequence_start="S" in flags,
            sequence_end="E" in flags,
            timeout_us=timeout_us,
        )
    )
    return Entry(request, 1, now)


def place_of(slot: Slot | None) -> tuple[int, int] | None:
    return None if slot is None else (slot.lane, slot.index)


def fill(table: SequenceTable, slots: list[Slot]) -> None:
    """Sequences 1 to 4 have started in slots 0, 2, 1 and 3, and their first requests are through."""
    for number in range(1, 5):
        table.place(entry(number, "S"), 0)
    for slot in slots:
        slot.queue.clear()


@pytest.fixture
def slots() -> list[Slot]:
    """Two instances with two slots each."""
    return [Slot(lane, index) for lane in range(2) for index in range(2)]


@pytest.fixture
def table(slots: list[Slot]) -> SequenceTable:
    return SequenceTable("m", slots, IDLE)


def test_sequences_spread_over_the_instances_and_keep_their_slots(table: SequenceTable) -> None:
    places = [place_of(table.place(entry(number, "S"), 0)) for number in (1, 2, 3, 4)]
    assert places == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert [place_of(table.place(entry(number), 0)) for number in (1, 2, 3, 4)] == places


def test_a_number_and_a_text_are_different_ids(table: SequenceTable) -> None:
    assert table.place(entry(1, "S"), 0) is not table.place(entry("1", "S"), 0)


def test_a_sequence_that_was_not_started_is_refused(table: SequenceTable) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        table.place(entry("abc"), 0)
    assert str(caught.value) == (
        "inference request for sequence abc to model 'm' must specify the START flag on the first request of the "
        "sequence"
    )


def test_after_its_end_a_sequence_is_unknown(table: SequenceTable) -> None:
    table.place(entry(1, "S"), 0)
    table.place(entry(1, "E"), 0)
    with pytest.raises(InvalidArgumentError):
        table.place(entry(1), 0)


def test_when_all_slots_are_taken_sequences_wait_in_line(table: SequenceTable, slots: list[Slot]) -> None:
    fill(table, slots)
    waiting = [entry(5, "S"), entry(6, "S"), entry(5), entry(5, "E")]
    assert [table.place(item, 0) for item in waiting] == [None] * 4
    assert table.waiting == 4
    assert table.release(slots[2], 0) == []
    assert list(slots[2].queue) == [waiting[0], waiting[2], waiting[3]]
    table.release(slots[0], 0)
    assert list(slots[0].queue) == [waiting[1]]
    assert table.place(entry(6), 0) is slots[0]
    with pytest.raises(InvalidArgumentError):
        table.place(entry(5), 0)


def test_a_released_slot_is_free_again(table: SequenceTable, slots: list[Slot]) -> None:
    for number in range(1, 5):
        table.place(entry(number, "SE"), 0)
        slots[0].queue.clear()
    table.release(slots[3], 0)
    assert table.place(entry(9, "S"), 0) is slots[3]


def test_a_start_in_the_middle_goes_on_in_the_same_slot(table: SequenceTable, caplog: Any) -> None:
    first = table.place(entry(1, "S"), 0)
    assert table.place(entry(1, "S"), 0) is first
    assert "has a conflict" in caplog.text


def test_an_id_may_start_again_while_its_ended_sequence_still_waits(table: SequenceTable, slots: list[Slot]) -> None:
    fill(table, slots)
    old, new, more = entry(5, "SE"), entry(5, "S"), entry(5)
    for item in (old, new, more):
        assert table.place(item, 0) is None
    table.release(slots[0], 0)
    table.release(slots[1], 0)
    assert list(slots[0].queue) == [old]
    assert list(slots[1].queue) == [new, more]


def test_an_idle_sequence_is_ended_and_its_slot_marked(table: SequenceTable, slots: list[Slot]) -> None:
    table.place(entry(1, "S"), 0)
    table.place(entry(2, "S"), 400)
    table.place(entry(1), 500)
    assert table.reap(1399) == []
    assert table.reap(1400) == [slots[2]]
    assert slots[2].queue[-1] is None
    with pytest.raises(InvalidArgumentError):
        table.place(entry(2), 1400)
    table.place(entry(1), 1400)


def test_the_time_in_line_does_not_make_a_sequence_idle(table: SequenceTable, slots: list[Slot]) -> None:
    fill(table, slots)
    table.place(entry(5, "S"), 0)
    assert len(table.reap(IDLE)) == 4
    table.release(slots[0], 5000)
    assert table.reap(5000 + IDLE - 1) == []
    assert table.reap(5000 + IDLE) == [slots[0]]


def test_a_sequence_in_line_is_given_up_when_one_of_its_requests_has_waited_too_long(table: SequenceTable) -> None:
    for number in range(1, 5):
        table.place(entry(number, "S"), 0)
    late = [entry(5, "S"), entry(5, timeout_us=1)]
    for item in late:
        table.place(item, 0)
    table.place(entry(6, "S", timeout_us=2), 0)
    assert table.due_ns == 1000
    assert table.expire(999) == []
    assert table.expire(1000) == late
    assert table.waiting == 1
    with pytest.raises(InvalidArgumentError):
        table.place(entry(5), 1000)


def test_something_is_due_only_while_a_sequence_waits(table: SequenceTable) -> None:
    for number in range(1, 5):
        table.place(entry(number, "S"), number)
    assert table.due_ns is None
    table.place(entry(5, "S"), 5)
    assert table.due_ns == 1 + IDLE


def test_a_cancelled_sequence_in_line_is_passed_over(table: SequenceTable, slots: list[Slot]) -> None:
    fill(table, slots)
    gone, stays = [entry(5, "S"), entry(5)], entry(6, "S")
    for item in (*gone, stays):
        table.place(item, 0)
    gone[1].request.cancel()
    assert table.release(slots[0], 0) == gone
    assert list(slots[0].queue) == [stays]


def test_what_an_ended_sequence_has_left_is_returned(table: SequenceTable, slots: list[Slot]) -> None:
    items = [entry(1, "S"), entry(1), entry(1)]
    for item in items:
        table.place(item, 0)
    assert table.release(slots[0], 0) == items
    with pytest.raises(InvalidArgumentError):
        table.place(entry(1), 0)


def test_draining_takes_everything_out_of_the_line(table: SequenceTable) -> None:
    for number in range(1, 5):
        table.place(entry(number, "S"), 0)
    waiting = [entry(5, "S"), entry(6, "SE")]
    for item in waiting:
        table.place(item, 0)
    assert table.drain() == waiting
    assert table.waiting == 0
