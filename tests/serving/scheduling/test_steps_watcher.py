import threading
from typing import Any

import pytest

from repoagent.serving.measuring.statistics import ModelStatistics
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.scheduling.steps import Refusal, Refuser, Watcher


class Deadlines:
    """Times at which something is due."""

    def __init__(self) -> None:
        self.times: list[int] = []

    @property
    def deadline_ns(self) -> int | None:
        return min(self.times, default=None)

    def sweep(self) -> list[Refusal]:
        return [Refusal.cancelled(InferRequest(Asked("m", {}, id="swept")))]

    def expire(self, now_ns: int) -> list[Refusal]:
        over = [time for time in self.times if time <= now_ns]
        self.times = [time for time in self.times if time > now_ns]
        return [Refusal.expired(InferRequest(Asked("m", {}, id=str(time)))) for time in over]


@pytest.fixture
def subject(clock: Any) -> Any:
    lock, deadlines, refused = threading.Lock(), Deadlines(), threading.Semaphore(0)
    names: list[str] = []

    class Names(Refuser):
        def answer(self, refusal: Refusal) -> None:
            names.append(refusal.request.asked.id)
            refused.release()

    watcher = Watcher("watcher", lock, clock, deadlines, Names(ModelStatistics(), clock))

    def add(time: int) -> None:
        with lock:
            deadlines.times.append(time)
            watcher.notice()

    yield add, names, refused, watcher
    watcher.stop()


def test_it_acts_when_the_time_has_come(subject: Any, clock: Any) -> None:
    add, names, refused, _ = subject
    due = clock.now_ns() + 5
    add(due)
    assert clock.events.get(timeout=60) == ("sleep", due)
    clock.advance(5)
    assert refused.acquire(timeout=60)
    assert names == [str(due)]


def test_an_earlier_time_is_noticed_a_later_one_wakes_nobody(subject: Any, clock: Any) -> None:
    add, names, refused, _ = subject
    now = clock.now_ns()
    add(now + 10)
    assert clock.events.get(timeout=60) == ("sleep", now + 10)
    add(now + 20)
    add(now + 5)
    assert clock.events.get(timeout=60) == ("sleep", now + 5)
    clock.advance(10)
    assert refused.acquire(timeout=60)
    assert refused.acquire(timeout=60)
    assert names == [str(now + 10), str(now + 5)]


def test_without_anything_due_there_is_no_thread(subject: Any, clock: Any) -> None:
    before = set(threading.enumerate())
    subject[3].notice()
    assert set(threading.enumerate()) <= before


def test_it_sweeps_when_a_request_is_cancelled_and_not_after_its_end(subject: Any) -> None:
    _, names, refused, watcher = subject
    for _ in range(2):  # The first one starts the thread, the second one wakes it up.
        watcher.on_cancel()
        assert refused.acquire(timeout=60)
    watcher.stop()
    watcher.on_cancel()
    assert names == ["swept", "swept"]
