"""Models that share the cores: one computes at a time, and each for as long as the others."""

from collections.abc import Sequence

import pytest

from repoagent.turns import QUANTUM, Seat, Turns


class Clock:
    """Time goes on when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def turns(clock: Clock) -> Turns:
    return Turns(clock)


def called(seat: Seat) -> bool:
    """Whether a seat that waits has its turn now."""
    return seat.called.acquire(blocking=False)


def test_one_alone_never_waits(turns: Turns, clock: Clock) -> None:
    seat = turns.seat()
    for _ in range(3):
        assert not turns.enter(seat)
        assert not seat.contended
        clock.now += 1
        turns.pass_on(seat)


def test_who_comes_second_waits_for_the_end_of_the_step(turns: Turns, clock: Clock) -> None:
    first, second = turns.seat(), turns.seat()
    assert not turns.enter(first)
    assert turns.enter(second)
    assert first.contended
    assert not called(second)
    clock.now += 1
    turns.pass_on(first)
    assert called(second)
    assert turns.enter(first)


def test_the_next_one_has_its_turn_when_one_leaves(turns: Turns) -> None:
    first, second = turns.seat(), turns.seat()
    turns.enter(first)
    turns.enter(second)
    turns.leave(first)
    assert called(second)
    assert not second.contended


def test_a_turn_outlasts_short_steps(turns: Turns, clock: Clock) -> None:
    first, second = turns.seat(), turns.seat()
    turns.enter(first)
    turns.enter(second)
    clock.now += QUANTUM / 4
    turns.pass_on(first)
    assert not turns.enter(first)
    assert not called(second)
    clock.now += QUANTUM
    turns.pass_on(first)
    assert called(second)


def shares(turns: Turns, clock: Clock, steps: Sequence[float], seconds: float) -> list[float]:
    """How long each of several seats computes in ``seconds``, whose steps take so long."""
    seats = [turns.seat() for _ in steps]
    computed = [0.0] * len(seats)
    running = [not turns.enter(seat) for seat in seats].index(True)
    end = clock.now + seconds
    while clock.now < end:
        clock.now += steps[running]
        computed[running] += steps[running]
        turns.pass_on(seats[running])
        if turns.enter(seats[running]):
            (running,) = (number for number, seat in enumerate(seats) if called(seat))
    return computed


@pytest.mark.parametrize("steps", [(0.01, 0.01), (0.001, 0.05), (0.0001, 0.01, 0.3)])
def test_all_compute_for_as_long_whatever_their_steps_take(
    turns: Turns, clock: Clock, steps: tuple[float, ...]
) -> None:
    found = shares(turns, clock, steps, 30)
    assert max(found) - min(found) <= 3 * max(steps)


def test_who_was_away_saves_up_nothing(turns: Turns, clock: Clock) -> None:
    busy, back = turns.seat(), turns.seat()
    for _ in range(100):
        turns.enter(busy)
        clock.now += 1
        turns.pass_on(busy)
    turns.enter(busy)
    turns.enter(back)
    clock.now += 1
    turns.pass_on(busy)
    assert called(back)
    turns.enter(busy)
    clock.now += 2
    turns.pass_on(back)
    assert called(busy)


def test_many_that_wait_do_not_take_the_turn_from_who_computes(turns: Turns, clock: Clock) -> None:
    seats = [turns.seat() for _ in range(5)]
    waiting = [seat for seat in seats if turns.enter(seat)]
    for _ in range(3):
        clock.now += turns.patience * 0.9
        turns.pass_over()
        assert not [seat for seat in waiting if called(seat)]
        turns.pass_on(seats[0])
        (following,) = [seat for seat in waiting if called(seat)]
        waiting.remove(following)
        seats[0] = following


def test_what_a_late_step_took_counts(turns: Turns, clock: Clock) -> None:
    late, other = turns.seat(), turns.seat()
    turns.enter(late)
    turns.enter(other)
    clock.now += turns.patience
    turns.pass_over()
    assert called(other)
    turns.pass_on(late)  # It has no turn to pass on.
    assert turns.enter(late)
    clock.now += turns.patience / 2
    turns.pass_on(other)
    assert not called(late)


def test_who_generates_is_no_longer_known_of_one_that_left(turns: Turns) -> None:
    first, second = turns.seat(), turns.seat()
    first.take(generates=True)
    turns.enter(second)
    assert second.awaited
    assert not first.awaited
    first.leave()
    assert not second.awaited


def test_a_turn_lasts_as_long_as_it_is_set(clock: Clock) -> None:
    turns = Turns(clock, quantum=1.0)
    first, second = turns.seat(), turns.seat()
    turns.enter(first)
    turns.enter(second)
    clock.now += 0.9
    turns.pass_on(first)
    assert not called(second)
    clock.now += 0.2
    turns.pass_on(first)
    assert called(second)


def test_a_context_takes_a_turn_and_leaves_also_when_it_fails(turns: Turns, clock: Clock) -> None:
    seat, other = turns.seat(), turns.seat()

    def fail() -> None:
        with seat:
            assert turns.enter(other)
            clock.now += 3
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert called(other)
    assert seat.used == 3
    assert not turns.contended
