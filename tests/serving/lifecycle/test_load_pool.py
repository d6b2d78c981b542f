import threading

import pytest

from repoagent.errors import UnavailableError
from repoagent.serving.lifecycle.load_pool import LoadPool, pausing


def test_no_more_jobs_run_at_once_than_allowed_and_all_run() -> None:
    pool = LoadPool(2)
    barrier, lock = threading.Barrier(2), threading.Lock()
    running, peak, done = 0, 0, 0

    def job() -> None:
        nonlocal running, peak, done
        with lock:
            running += 1
            peak = max(peak, running)
        barrier.wait(60)
        with lock:
            running -= 1
            done += 1

    for _ in range(20):
        pool.submit(job)
    pool.close(wait=True)
    assert (peak, done) == (2, 20)


def test_a_job_that_waits_for_another_gives_its_place_up() -> None:
    pool, inner = LoadPool(1), threading.Event()

    def outer() -> None:
        pool.submit(inner.set)
        with pausing():
            assert inner.wait(60)

    pool.submit(outer)
    pool.close(wait=True)
    assert inner.is_set()


def test_an_idle_pool_has_no_threads() -> None:
    pool = LoadPool(4)
    before = set(threading.enumerate())
    for _ in range(10):
        pool.submit(lambda: None)
    pool.close(wait=True)
    for thread in set(threading.enumerate()) - before:
        thread.join(60)  # It has nothing more to do, but may be there for another moment.
        assert not thread.is_alive()


def test_a_closed_pool_drops_what_has_not_begun() -> None:
    pool, hold, begun, ran = LoadPool(1), threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        hold.wait(60)

    pool.submit(first)
    pool.submit(ran.set)
    assert begun.wait(60)
    pool.close(wait=False)
    hold.set()
    with pytest.raises(UnavailableError, match="the server has stopped"):
        pool.submit(lambda: None)
    pool.close(wait=True)
    assert not ran.is_set()


def test_the_last_thread_says_when_there_is_nothing_more_to_do() -> None:
    idle, done = threading.Event(), []
    pool = LoadPool(2, idle.set)
    for number in range(20):
        pool.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    assert idle.wait(60)
    pool.close(wait=True)
    assert sorted(done) == list(range(20))
