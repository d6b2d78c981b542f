"""The thread that tells observers."""

import logging
import threading

import pytest

from repoagent.loader.observers import ObserverThread


def test_jobs_run_in_order_on_another_thread() -> None:
    observers = ObserverThread()
    seen: list[tuple[int, int]] = []
    for number in range(5):
        observers.submit(lambda number=number: seen.append((number, threading.get_ident())))  # type: ignore[misc]
    assert observers.flush(30)
    observers.close()
    assert [number for number, _ in seen] == [0, 1, 2, 3, 4]
    assert {ident for _, ident in seen} != {threading.get_ident()}
    assert len({ident for _, ident in seen}) == 1


def test_a_full_queue_drops_and_counts_and_never_waits(caplog: pytest.LogCaptureFixture) -> None:
    observers = ObserverThread(limit=2)
    started, go_on = threading.Event(), threading.Event()

    def block() -> None:
        started.set()
        assert go_on.wait(60)

    observers.submit(block)
    assert started.wait(60)
    ran: list[int] = []
    for number in range(5):
        observers.submit(lambda number=number: ran.append(number))  # type: ignore[misc]
    assert observers.dropped == 3
    assert not observers.flush(0)
    go_on.set()
    assert observers.flush(30)
    assert ran == [0, 1]
    assert len([record for record in caplog.records if "too slow" in record.message]) == 1
    observers.close()


def test_a_job_that_raises_is_logged_and_the_next_one_runs(caplog: pytest.LogCaptureFixture) -> None:
    observers = ObserverThread()
    ran: list[str] = []

    def broken() -> None:
        raise ValueError("no")

    observers.submit(broken)
    observers.submit(lambda: ran.append("next"))
    assert observers.flush(30)
    observers.close()
    assert ran == ["next"]
    assert [record.message for record in caplog.records] == ["an observer raised"]


def test_closing_runs_what_is_queued_and_takes_nothing_more() -> None:
    observers = ObserverThread()
    ran: list[int] = []
    observers.submit(lambda: ran.append(1))
    observers.close()
    observers.submit(lambda: ran.append(2))
    observers.close()
    assert ran == [1]
    assert observers.dropped == 1


def test_closing_does_not_wait_for_ever_for_a_stuck_observer(caplog: pytest.LogCaptureFixture) -> None:
    observers = ObserverThread()
    started, go_on = threading.Event(), threading.Event()

    def block() -> None:
        started.set()
        go_on.wait(60)

    observers.submit(block)
    assert started.wait(60)
    observers.submit(lambda: None)
    with caplog.at_level(logging.WARNING):
        observers.close(timeout=0.01)
    assert "1 events are lost" in caplog.text
    go_on.set()


def test_without_jobs_there_is_no_thread() -> None:
    before = set(threading.enumerate())
    observers = ObserverThread()
    assert set(threading.enumerate()) <= before
    observers.close()
    assert set(threading.enumerate()) <= before
