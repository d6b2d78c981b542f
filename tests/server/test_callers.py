import threading

from repoagent.server.iterators import Caller


def take_turns(caller: Caller, rounds: int) -> None:
    for _ in range(rounds):
        caller.hear(caller.ask())


def test_nothing_is_known_of_a_thread_that_never_asked() -> None:
    caller = Caller()
    assert not caller.patient
    caller.ask()
    assert not caller.patient


def test_a_thread_that_takes_each_answer_before_it_asks_again_is_patient() -> None:
    caller = Caller()
    take_turns(caller, 2)
    assert caller.patient


def test_a_thread_that_asks_for_several_things_at_once_is_not() -> None:
    caller = Caller()
    take_turns(caller, 5)
    caller.ask()
    caller.ask()
    assert not caller.patient


def test_a_thread_that_always_asks_for_several_things_never_becomes_it() -> None:
    caller = Caller()
    seen = []
    for _ in range(5):
        serials = []
        for _ in range(3):
            serials.append(caller.ask())
            seen.append(caller.patient)
        for serial in serials:
            caller.hear(serial)
    assert not any(seen)


def test_a_thread_becomes_patient_again() -> None:
    caller = Caller()
    caller.ask()  # Nobody took the answer.
    caller.ask()
    take_turns(caller, 3)
    assert caller.patient


def test_answers_that_another_thread_takes_do_not_count() -> None:
    caller = Caller()
    for _ in range(5):
        serial = caller.ask()
        other = threading.Thread(target=caller.hear, args=(serial,))
        other.start()
        other.join()
    assert not caller.patient


def test_each_thread_is_judged_by_itself() -> None:
    caller = Caller()
    take_turns(caller, 5)
    seen = []
    other = threading.Thread(target=lambda: seen.append(caller.patient))
    other.start()
    other.join()
    assert [*seen, caller.patient] == [False, True]
