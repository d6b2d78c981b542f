import threading

from repoagent.serving.versions.served_model import Gate


def test_nobody_enters_a_shut_gate() -> None:
    gate = Gate()
    assert gate.enter()
    gate.shut()
    assert not gate.enter()
    assert gate.inside == 1


def test_an_empty_gate_is_not_waited_for() -> None:
    assert Gate().wait_empty(0)


def test_waiting_ends_when_the_last_one_leaves() -> None:
    gate = Gate()
    gate.enter()
    gate.enter()
    gate.shut()
    assert not gate.wait_empty(0)
    results: list[bool] = []
    waiter = threading.Thread(target=lambda: results.append(gate.wait_empty(10)))
    waiter.start()
    gate.leave()
    gate.leave()
    waiter.join(60)
    assert results == [True]


def test_after_a_crowd_nobody_is_counted_that_is_not_inside() -> None:
    gate, start = Gate(), threading.Barrier(5)
    entered: list[int] = []

    def come_and_go() -> None:
        start.wait(60)
        times = 0
        while gate.enter():
            gate.leave()
            times += 1
        entered.append(times)

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    start.wait(60)
    assert gate.enter()
    gate.shut()
    for thread in threads:
        thread.join(60)
    assert len(entered) == 4
    assert gate.inside == 1
    gate.leave()
    assert gate.wait_empty(0)
