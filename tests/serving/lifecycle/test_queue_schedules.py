"""The queue of loads under every schedule of its threads: no job is lost, whatever comes between."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from repoagent.errors import UnavailableError
from repoagent.serving.lifecycle import load_pool
from repoagent.serving.lifecycle.load_pool import LoadPool, SerialQueue
from tests.serving.lifecycle.schedules import Schedule, schedules

pytestmark = pytest.mark.slow


class Program:
    """Callers of queues under one schedule. Every future that they were given is looked at in the end."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.pool, self.urgent = LoadPool(1), LoadPool(1)
        self.futures: list[Future[object]] = []
        self.refused = 0
        self.inside: set[int] = set()
        self.order: list[str] = []

    def queue(self) -> SerialQueue:
        return SerialQueue(self.pool, self.urgent)

    def submit(self, queue: SerialQueue, name: str, work: Callable[[], object] | None = None, **how: bool) -> None:
        def job() -> object:
            assert id(queue) not in self.inside, "two jobs of one queue at once"
            self.inside.add(id(queue))
            self.order.append(name)
            self.schedule.pause()
            try:
                return work() if work is not None else name
            finally:
                self.inside.discard(id(queue))

        try:
            self.futures.append(queue.submit(job, **how))
        except UnavailableError:
            self.refused += 1

    def wait(self) -> None:
        self.schedule.pause(lambda: all(future.done() for future in self.futures))

    def run(self, *callers: Callable[[], object]) -> None:
        self.schedule.run(*callers)
        assert all(future.done() for future in self.futures), (self.schedule.chosen, self.order)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Iterator[Program]]:
    def each(**bounds: int) -> Iterator[Program]:
        for schedule in schedules(**bounds):
            monkeypatch.setattr(load_pool, "threading", schedule)
            yield Program(schedule)

    return each


Programs = Callable[..., Iterator[Program]]


def two_callers(program: Program, queue: SerialQueue) -> tuple[Callable[[], None], Callable[[], None]]:
    """One submits two jobs, one after the other, and one an urgent job."""

    def two() -> None:
        program.submit(queue, "a1")
        program.submit(queue, "a2")

    def urgent() -> None:
        program.submit(queue, "b", urgent=True)

    return two, urgent


def test_no_job_is_lost_between_callers_that_come_at_once(programs: Programs) -> None:
    count = 0
    for program in programs(preemptions=2):
        program.run(*two_callers(program, program.queue()))
        count += 1
        assert sorted(program.order) == ["a1", "a2", "b"]
        assert program.order.index("a1") < program.order.index("a2")
    assert count > 500


def test_a_job_that_waits_for_one_of_another_queue_gets_it(programs: Programs) -> None:
    """As an ensemble waits for its members, while somebody unloads both, and each pool has one thread."""

    def callers(program: Program) -> tuple[Callable[[], None], Callable[[], None]]:
        ensemble, member = program.queue(), program.queue()

        def load() -> object:
            needed: Future[object] = member.submit(lambda: program.order.append("needed"))
            with load_pool.pausing():
                program.schedule.pause(needed.done)
            return needed.result(0)

        def outer() -> None:
            program.submit(ensemble, "ensemble", load)
            program.submit(ensemble, "gone", urgent=True)

        def inner() -> None:
            program.submit(member, "load")
            program.submit(member, "unload", urgent=True)

        return outer, inner

    for program in programs(preemptions=1):
        program.run(*callers(program))
        assert program.refused == 0
        assert sorted(program.order) == ["ensemble", "gone", "load", "needed", "unload"]


def test_a_thread_that_cannot_be_started_loses_no_job(programs: Programs) -> None:
    """The machine may refuse a thread at any time; the call is refused then, or a thread that there is does it."""
    refused = 0
    for program in programs(preemptions=1, failures=2):
        program.run(*two_callers(program, program.queue()))
        refused += program.refused
        failed = sum(future.exception(0) is not None for future in program.futures)
        assert len(program.order) == 3 - program.refused - failed
    assert refused


def test_the_end_of_the_pools_ends_every_job(programs: Programs) -> None:
    """A server whose time to stop is over: who waits for a load hears of it, also of one that has begun."""

    def stopping(program: Program, queue: SerialQueue) -> Callable[[], None]:
        def stop() -> None:
            for pool in (program.urgent, program.pool):
                pool.close(wait=False)
            queue.abandon(UnavailableError("stopped"))

        return stop

    for program in programs(preemptions=1):
        queue = program.queue()
        program.run(*two_callers(program, queue), stopping(program, queue))
        for future in program.futures:
            assert future.exception(0) is None or isinstance(future.exception(0), UnavailableError)
