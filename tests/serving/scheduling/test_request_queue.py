"""The queue of the plain schedulers, and who is called for what stands in it."""

import threading

from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.scheduling.direct import RequestQueue
from repoagent.serving.scheduling.steps import Entry


def entry() -> Entry:
    return Entry(InferRequest(Asked("m", {})), 1, 0)


def test_who_waits_gets_one_entry_after_the_other() -> None:
    line, entries = RequestQueue(), [entry(), entry()]
    for one in entries:
        line.put(one)
    line.dismiss()
    assert [line.wait(), line.wait(), line.wait()] == [*entries, None]


def test_what_is_put_back_is_the_first_one_again() -> None:
    line, first, second = RequestQueue(), entry(), entry()
    line.put(first)
    line.put(second)
    taken = line.take()
    assert taken is first
    line.put_back(first)
    assert [line.take(), line.take(), line.take()] == [first, second, None]


def test_a_call_for_what_another_one_took_wakes_nobody() -> None:
    line = RequestQueue()
    line.put(entry())
    assert line.take() is not None
    line.dismiss()
    assert line.wait() is None


def test_one_call_is_enough_for_all_that_came_without_one() -> None:
    attended = True
    line, entries = RequestQueue(lambda: attended), [entry() for _ in range(3)]
    for one in entries:
        line.put(one)
    attended = False
    line.call()
    assert [line.wait() for _ in entries] == entries


def test_nobody_is_called_while_somebody_attends_and_what_came_then_is_there_for_the_next_call() -> None:
    attended = True
    line = RequestQueue(lambda: attended)
    first = entry()
    line.put(first)
    got: list[Entry | None] = []
    worker = threading.Thread(target=lambda: got.append(line.wait()))
    worker.start()
    line.call()  # It looks, and sees that the entry is somebody else's.
    assert len(line) == 1
    attended = False
    line.call()
    worker.join(60)
    assert got == [first]
