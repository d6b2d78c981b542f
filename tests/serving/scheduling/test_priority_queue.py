from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.scheduling.priority_queue import PriorityQueue
from repoagent.serving.scheduling.settings import BatchSettings, QueuePolicy
from repoagent.serving.scheduling.steps import Entry


def entry(level: int = 0, timeout_us: int = 0, now: int = 0) -> Entry:
    return Entry(InferRequest(Asked("m", {}, timeout_us=timeout_us)), 1, now, level=level)


def test_entries_put_back_are_the_next_again_in_their_order() -> None:
    queue = PriorityQueue(BatchSettings(levels=2, default_level=1))
    entries = [entry(1), entry(1), entry(2)]
    for item in entries:
        assert queue.put(item)
    popped = [queue.pop(), queue.pop()]
    assert popped == entries[:2]
    queue.put_back(entries[:2])
    assert len(queue) == 3
    assert [queue.pop() for _ in range(4)] == [*entries, None]


def test_a_delayed_entry_put_back_stays_delayed() -> None:
    queue = PriorityQueue(BatchSettings(policy=QueuePolicy(delays=True, timeout_ns=10)))
    late, fresh = entry(), entry(now=10)
    queue.put(late)
    queue.put(fresh)
    assert queue.expire(10) == []
    popped = [queue.pop(), queue.pop()]
    assert popped == [fresh, late]
    queue.put_back([fresh, late])
    assert [queue.pop(), queue.pop()] == [fresh, late]


def test_deadlines_of_entries_that_left_are_forgotten() -> None:
    queue = PriorityQueue(BatchSettings(policy=QueuePolicy(timeout_ns=1_000_000)))
    for number in range(1000):
        queue.put(entry(now=number))
        left = queue.pop()
        assert left is not None
        left.state = type(left.state).GONE
    assert len(queue._deadlines) < 100
    assert queue.deadline_ns is None
