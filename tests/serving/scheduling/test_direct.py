import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from repoagent.errors import CancelledError, UnavailableError
from repoagent.serving.instances.runner_instances import RunnerInstance
from repoagent.serving.measuring.statistics import ModelStatistics
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.scheduling.direct import DirectScheduler, RequestQueue
from repoagent.serving.scheduling.steps import Entry
from tests.serving.version_contexts import version_of

RequestMaker = Callable[..., InferRequest]


@pytest.fixture
def statistics() -> ModelStatistics:
    return ModelStatistics()


@pytest.fixture
def runners(new_runner: Any) -> list[Any]:
    return [new_runner(1), new_runner(1)]


@pytest.fixture
def one(runners: list[Any], statistics: ModelStatistics) -> Any:
    """A scheduler with a single instance over ``runners[0]``."""
    scheduler = DirectScheduler("m", [RunnerInstance(version_of(statistics), runners[0])], statistics)
    yield scheduler
    scheduler.close()


def let_go_when(condition: Callable[[], bool], runner: Any) -> None:
    """Let the runner answer what it holds once the condition holds, which the caller's next step brings about."""

    def let_go() -> None:
        while not condition():
            threading.Event().wait(0.001)
        runner.hold.set()

    threading.Thread(target=let_go, daemon=True).start()


def test_a_caller_that_waits_executes_on_its_own_thread(
    one: DirectScheduler, request_of: RequestMaker, runners: list[Any]
) -> None:
    before = set(threading.enumerate())
    one.infer(request_of())
    assert runners[0].threads == [threading.get_ident()]
    assert set(threading.enumerate()) <= before


def test_a_submitted_request_is_executed_by_a_worker(
    one: DirectScheduler, request_of: RequestMaker, new_sender: Any, runners: list[Any]
) -> None:
    sender = new_sender()
    one.submit(request_of(sender=sender, id="r"))
    assert sender.final().id == "r"
    assert runners[0].threads != [threading.get_ident()]


class Clock:
    """Time that goes on by ``step`` nanoseconds at each look, so that no test depends on how fast the machine is."""

    def __init__(self) -> None:
        self.now = 0
        self.step = 1000

    def __call__(self) -> int:
        self.now += self.step
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("repoagent.serving.instances.runner_instances.time.monotonic_ns", clock)
    return clock


@pytest.mark.usefixtures("clock")
def test_a_quick_model_is_executed_where_its_request_was_submitted(
    one: DirectScheduler, request_of: RequestMaker, new_sender: Any, runners: list[Any]
) -> None:
    sender = new_sender()
    for _ in range(100):
        one.submit(request_of(sender=sender))
        assert sender.final().error is None
    assert runners[0].threads[0] != threading.get_ident()
    assert runners[0].threads[-1] == threading.get_ident()


def test_one_slow_run_sends_the_following_requests_to_the_workers(
    runners: list[Any], request_of: RequestMaker, statistics: ModelStatistics, clock: Clock
) -> None:
    instance = RunnerInstance(version_of(statistics), runners[0])
    seen = [instance.run_time.quick]
    instance.call(request_of())
    seen.append(instance.run_time.quick)
    clock.step = 5_000_000
    instance.call(request_of())
    seen.append(instance.run_time.quick)
    clock.step = 1000
    instance.call(request_of())
    seen.append(instance.run_time.quick)
    for _ in range(200):
        instance.call(request_of())
    assert [*seen, instance.run_time.quick] == [False, True, False, False, True]


def test_a_slow_run_now_and_then_does_not_change_what_is_usual(
    runners: list[Any], request_of: RequestMaker, statistics: ModelStatistics, clock: Clock
) -> None:
    instance = RunnerInstance(version_of(statistics), runners[0])
    scheduler = DirectScheduler("m", [instance], statistics)
    seen = [scheduler.executes_here(False)]
    for _ in range(20):
        scheduler.infer(request_of())
    seen.append(scheduler.executes_here(False))
    clock.step = 5_000_000
    scheduler.infer(request_of())
    assert not instance.run_time.quick
    assert [*seen, scheduler.executes_here(False)] == [False, True, True]
    scheduler.close()


def test_a_model_that_is_slow_each_time_is_not_quick(
    runners: list[Any], request_of: RequestMaker, statistics: ModelStatistics, clock: Clock
) -> None:
    instance = RunnerInstance(version_of(statistics), runners[0])
    for _ in range(20):
        instance.call(request_of())
    assert instance.run_time.usual_ns < 10**6
    clock.step = 10**6
    for _ in range(200):
        instance.call(request_of())
    assert instance.run_time.usual_ns >= 10**6


def test_requests_are_executed_in_order(one: DirectScheduler, request_of: RequestMaker, new_sender: Any) -> None:
    sender = new_sender()
    for number in range(50):
        one.submit(request_of(sender=sender, id=str(number)))
    assert [sender.final().id for _ in range(50)] == [str(number) for number in range(50)]


def test_a_worker_that_wakes_up_takes_all_that_waits(
    one: DirectScheduler, request_of: RequestMaker, new_sender: Any, runners: list[Any]
) -> None:
    runner, sender = runners[0], new_sender()
    runner.hold = threading.Event()
    one.submit(request_of(sender=sender))
    assert runner.running.acquire(timeout=60)
    for _ in range(20):
        one.submit(request_of(sender=sender))
    assert one.waiting == 20
    runner.hold.set()
    for _ in range(21):
        sender.final()
    assert one.waiting == 0
    assert runner.calls == 21


def test_several_instances_work_at_once(
    runners: list[Any], statistics: ModelStatistics, request_of: RequestMaker, new_sender: Any
) -> None:
    scheduler = DirectScheduler("m", [RunnerInstance(version_of(statistics), r) for r in runners], statistics)
    hold = threading.Event()
    for runner in runners:
        runner.hold = hold
    sender = new_sender()
    for _ in range(2):
        scheduler.submit(request_of(sender=sender))
    assert all(runner.running.acquire(timeout=60) for runner in runners)
    hold.set()
    assert [sender.final().error for _ in range(2)] == [None, None]
    scheduler.close()


def test_a_caller_waits_for_a_free_instance(
    one: DirectScheduler, request_of: RequestMaker, new_sender: Any, runners: list[Any]
) -> None:
    runner, sender = runners[0], new_sender()
    runner.hold = threading.Event()
    one.submit(request_of(sender=sender))
    assert runner.running.acquire(timeout=60)
    let_go_when(lambda: bool(one._pool._waiters), runner)
    assert one.infer(request_of()).error is None


def test_a_caller_waits_no_longer_than_its_timeout(
    one: DirectScheduler,
    request_of: RequestMaker,
    new_sender: Any,
    runners: list[Any],
    statistics: ModelStatistics,
) -> None:
    runner, sender = runners[0], new_sender()
    runner.hold = threading.Event()
    one.submit(request_of(sender=sender))
    assert runner.running.acquire(timeout=60)
    with pytest.raises(UnavailableError, match="Request timeout expired"):
        one.infer(request_of(timeout_us=1000))
    late = new_sender()
    one.submit(request_of(sender=late, timeout_us=1))
    runner.hold.set()
    assert isinstance(late.final().error, UnavailableError)
    assert runner.calls == 1
    assert statistics.snapshot().failures["REJECTED"] == 2


def test_a_cancelled_request_is_answered_without_being_executed(
    one: DirectScheduler,
    request_of: RequestMaker,
    new_sender: Any,
    runners: list[Any],
    statistics: ModelStatistics,
) -> None:
    sender = new_sender()
    request = request_of(sender=sender)
    request.cancel()
    one.submit(request)
    assert isinstance(sender.final().error, CancelledError)
    with pytest.raises(CancelledError):
        one.infer(request)
    assert runners[0].calls == 0
    assert statistics.snapshot().failures["CANCELED"] == 2


def test_a_request_that_waits_is_answered_as_soon_as_it_is_cancelled_or_its_time_is_over(
    one: DirectScheduler, request_of: RequestMaker, new_sender: Any, runners: list[Any]
) -> None:
    runner = runners[0]
    runner.hold = threading.Event()
    first, cancelled, late, last = (new_sender() for _ in range(4))
    one.submit(request_of(sender=first))
    assert runner.running.acquire(timeout=60)
    request = request_of(sender=cancelled)
    one.submit(request)
    timed = request_of(sender=late, timeout_us=1000)
    timed.arrival_ns = time.monotonic_ns()
    one.submit(timed)
    one.submit(request_of(sender=last))
    request.cancel()
    assert isinstance(cancelled.final(60).error, CancelledError)
    assert str(late.final(60).error) == "Request timeout expired"
    assert one.waiting == 1
    runner.hold.set()
    assert first.final(60).error is None
    assert last.final(60).error is None
    assert runner.calls == 2


def test_a_caller_that_waits_for_an_instance_hears_of_the_cancellation_at_once(
    one: DirectScheduler, request_of: RequestMaker, new_sender: Any, runners: list[Any]
) -> None:
    runner, sender, request = runners[0], new_sender(), request_of()
    runner.hold = threading.Event()
    one.submit(request_of(sender=sender))
    assert runner.running.acquire(timeout=60)
    errors: list[Exception] = []

    def call() -> None:
        try:
            one.infer(request)
        except CancelledError as error:
            errors.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    while not one._pool._waiters:  # Until it stands in the line.
        pass
    request.cancel()
    caller.join(60)
    assert len(errors) == 1
    runner.hold.set()
    assert sender.final(60).error is None


def test_a_request_that_comes_while_it_is_closed_is_answered(
    one: DirectScheduler, request_of: RequestMaker, new_sender: Any
) -> None:
    senders = [new_sender() for _ in range(2)]
    one.submit(request_of(sender=senders[0]))
    assert senders[0].final().error is None
    one.close()
    one.submit(request_of(sender=senders[1]))
    assert isinstance(senders[1].final().error, UnavailableError)


def test_closing_answers_what_waits_and_closes_the_instances(
    one: DirectScheduler, request_of: RequestMaker, new_sender: Any, runners: list[Any]
) -> None:
    runner, sender, waiting = runners[0], new_sender(), new_sender()
    runner.hold = threading.Event()
    one.submit(request_of(sender=sender))
    assert runner.running.acquire(timeout=60)
    one.submit(request_of(sender=waiting))
    let_go_when(lambda: one._closed, runner)
    one.close()
    assert sender.final().error is None
    assert isinstance(waiting.final().error, UnavailableError)
    assert runner.closed
    with pytest.raises(UnavailableError, match="unloaded"):
        one.infer(request_of())


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
