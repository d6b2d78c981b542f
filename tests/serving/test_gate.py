import threading

from repoagent.serving.gate import Gate


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
