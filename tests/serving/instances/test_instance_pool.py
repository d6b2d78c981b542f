import random
import threading

from repoagent.serving.instances.instance_pool import InstancePool


def test_items_are_taken_and_given_back() -> None:
    pool = InstancePool(["a", "b"])
    assert {pool.take(), pool.take()} == {"a", "b"}
    assert pool.take(0) is None
    pool.give("a")
    assert pool.take() == "a"


def test_a_waiting_thread_gets_what_is_given_back() -> None:
    pool = InstancePool(["a"])
    item = pool.take()
    got: list[object] = []
    waiter = threading.Thread(target=lambda: got.append(pool.take(10)))
    waiter.start()
    assert item is not None
    pool.give(item)
    waiter.join(60)
    assert got == ["a"]


def test_a_thread_that_hurries_does_not_starve_one_that_waits() -> None:
    pool = InstancePool(["a"])
    stop = threading.Event()

    def hurry() -> None:
        while not stop.is_set():
            item = pool.take()
            assert item is not None
            pool.give(item)

    hurrying = [threading.Thread(target=hurry) for _ in range(3)]
    for thread in hurrying:
        thread.start()
    for _ in range(20):
        item = pool.take(10)
        assert item is not None
        pool.give(item)
    stop.set()
    for thread in hurrying:
        thread.join(60)


def test_no_item_is_lost_or_held_twice_in_a_crowd_that_gives_up_at_random() -> None:
    pool = InstancePool(range(2))
    held = [threading.Lock(), threading.Lock()]
    served: list[int] = []

    def use(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(150):
            item = pool.take(chance.choice([None, 0, 1e-5, 1e-3]))
            if item is None:
                continue
            assert held[item].acquire(blocking=False)
            if chance.random() < 0.2:
                threading.Event().wait(chance.random() / 2000)
            served.append(seed)
            held[item].release()
            pool.give(item)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert set(served) == set(range(8))
    assert {pool.take(0), pool.take(0)} == {0, 1}
