import threading
from collections.abc import Iterator

import pytest

from repoagent.errors import UnavailableError
from repoagent.serving.lifecycle.load_pool import LoadPool, SerialQueue, pausing


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


@pytest.fixture
def pool() -> Iterator[LoadPool]:
    pool = LoadPool(4)
    yield pool
    pool.close(wait=True)


def test_jobs_of_one_queue_run_in_order_and_never_at_once(pool: LoadPool) -> None:
    queue = SerialQueue(pool)
    inside = threading.Lock()
    order: list[int] = []

    def job(number: int) -> int:
        assert inside.acquire(blocking=False)
        order.append(number)
        inside.release()
        return number

    futures = [queue.submit(lambda number=number: job(number)) for number in range(200)]  # type: ignore[misc]
    assert [future.result(60) for future in futures] == order == list(range(200))


def test_jobs_of_different_queues_run_at_once(pool: LoadPool) -> None:
    barrier = threading.Barrier(3)
    futures = [SerialQueue(pool).submit(lambda: barrier.wait(60)) for _ in range(3)]
    assert sorted(future.result(60) for future in futures) == [0, 1, 2]


def test_waiting_jobs_of_one_queue_leave_the_pool_to_the_others() -> None:
    pool = LoadPool(2)
    busy, free, hold = SerialQueue(pool), SerialQueue(pool), threading.Event()
    held = [busy.submit(lambda: hold.wait(60)) for _ in range(5)]
    assert free.submit(lambda: "through").result(60) == "through"
    hold.set()
    assert all(future.result(60) for future in held)
    pool.close(wait=True)


def test_a_job_that_raises_does_not_stop_the_next(pool: LoadPool) -> None:
    queue = SerialQueue(pool)

    def fail() -> None:
        raise ValueError("no")

    failed, after = queue.submit(fail), queue.submit(lambda: "done")
    with pytest.raises(ValueError, match="no"):
        failed.result(60)
    assert after.result(60) == "done"


def test_a_cancelled_job_is_skipped(pool: LoadPool) -> None:
    queue, hold, ran = SerialQueue(pool), threading.Event(), threading.Event()
    queue.submit(lambda: hold.wait(60))
    skipped = queue.submit(ran.set)
    assert skipped.cancel()
    hold.set()
    assert queue.submit(lambda: "last").result(60) == "last"
    assert not ran.is_set()


def test_an_urgent_job_and_those_before_it_do_not_wait_for_the_pool() -> None:
    pool, urgent, hold = LoadPool(1), LoadPool(1), threading.Event()
    pool.submit(lambda: _wait(hold))
    queue, order = SerialQueue(pool, urgent), list[str]()
    queue.submit(lambda: order.append("earlier"))
    queue.submit(lambda: order.append("urgent"), urgent=True).result(60)
    assert order == ["earlier", "urgent"]
    later = queue.submit(lambda: order.append("later"))
    hold.set()
    later.result(60)
    pool.close(wait=True)
    assert order == ["earlier", "urgent", "later"]


def _wait(event: threading.Event) -> None:
    assert event.wait(60)
