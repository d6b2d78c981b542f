"""The watch: rings once, at the end, unless it was stopped."""

import threading
from datetime import UTC, datetime, timedelta

from repoagent_license.agent import Watch
from repoagent_license.terms import now

START = datetime(2020, 1, 1, tzinfo=UTC)


def test_it_rings_at_the_end() -> None:
    rung = threading.Event()
    watch = Watch(now() + timedelta(milliseconds=50), rung.set, clock=now)
    assert rung.wait(120)
    watch.stop()


def test_it_rings_at_once_when_the_end_is_past() -> None:
    rung = threading.Event()
    Watch(START, rung.set, clock=now)
    assert rung.wait(120)


def test_it_does_not_ring_after_it_was_stopped_and_its_thread_is_gone() -> None:
    rung = threading.Event()
    watch = Watch(START + timedelta(days=100_000), rung.set, clock=now)
    watch.stop()
    watch.stop()
    assert not rung.is_set()
    assert not watch._thread.is_alive()


def test_a_clock_that_is_set_forward_counts() -> None:
    rung = threading.Event()
    times = iter([START, START + timedelta(milliseconds=10), START + timedelta(days=2)])
    Watch(START + timedelta(milliseconds=20), rung.set, clock=lambda: next(times))
    assert rung.wait(120)
