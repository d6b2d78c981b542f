"""Every order in which threads may run: a stand-in for ``threading`` whose schedule the test owns.

One thread runs at a time, and only where it takes a lock, waits or begins a job may another one go on. A program is run
once for each way to choose, which is every way that can make a difference for code whose shared state is used under
locks. ``preemptions`` bounds how often a thread that could go on is made to wait, ``failures`` how often the machine
refuses to start a thread.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any


class Deadlock(AssertionError):
    """Nobody can go on, and somebody has not ended."""


class _Task:
    def __init__(self, schedule: "Schedule", target: Callable[[], object]) -> None:
        self.go = threading.Semaphore(0)
        self.ready: Callable[[], bool] = lambda: True
        self.done = False
        self.error: BaseException | None = None
        self._schedule = schedule
        self._target = target
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.go.acquire()
        try:
            self._target()
        except BaseException as error:
            self.error = error
        self.done = True
        self._schedule.back.release()


class Schedule:
    """One way to choose: ``prefix`` says how to begin, after which the first is always taken."""

    def __init__(self, prefix: list[int], preemptions: int, failures: int) -> None:
        self.back = threading.Semaphore(0)
        self.chosen: list[int] = []
        self.widths: list[int] = []
        self._prefix = prefix
        self._preemptions = preemptions
        self._failures = failures
        self._tasks: list[_Task] = []
        self._current: _Task | None = None

    # -- what stands in for the module ------------------------------------------------------------------------------

    def Lock(self) -> "_Lock":
        return _Lock(self)

    def Condition(self, lock: "_Lock") -> "_Condition":
        return _Condition(self, lock)

    def Thread(self, *, target: Callable[..., object], args: tuple[Any, ...] = (), **_: object) -> "_Thread":
        return _Thread(self, lambda: target(*args))

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self, *programs: Callable[[], object]) -> None:
        """Run all of them to their ends, and what they start."""
        for program in programs:
            self.add(program)
        while not all(task.done for task in self._tasks):
            able = [task for task in self._tasks if not task.done and task.ready()]
            if not able:
                raise Deadlock(f"after {self.chosen}")
            if self._current in able:  # To let it go on costs nothing.
                able.remove(self._current)
                able.insert(0, self._current)
                free = self._preemptions > 0
                number = self.choose(len(able) if free else 1)
                self._preemptions -= number > 0
            else:
                number = self.choose(len(able))
            self._current = able[number]
            self._current.go.release()
            self.back.acquire()
        for task in self._tasks:
            if task.error is not None:
                raise task.error

    def add(self, program: Callable[[], object]) -> None:
        self._tasks.append(_Task(self, program))

    def choose(self, width: int) -> int:
        """One of ``width``."""
        number = self._prefix[len(self.chosen)] if len(self.chosen) < len(self._prefix) else 0
        self.chosen.append(number)
        self.widths.append(width)
        return number

    def starts(self) -> bool:
        """Whether the machine has another thread."""
        if self._failures and self.choose(2):
            self._failures -= 1
            return False
        return True

    def pause(self, ready: Callable[[], bool] = lambda: True) -> None:
        """Let others run, and go on some time when ``ready``."""
        task = self._current
        assert task is not None
        task.ready = ready
        self.back.release()
        task.go.acquire()


class _Lock:
    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._held = False

    def __enter__(self) -> None:
        self._schedule.pause(lambda: not self._held)
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False


class _Condition:
    def __init__(self, schedule: Schedule, lock: _Lock) -> None:
        self._schedule = schedule
        self._lock = lock
        self._calls = 0

    def wait_for(self, predicate: Callable[[], bool]) -> None:
        while not predicate():
            calls = self._calls
            self._lock.__exit__()
            self._schedule.pause(lambda calls=calls: self._calls > calls)  # type: ignore[misc]
            self._lock.__enter__()

    def notify_all(self) -> None:
        self._calls += 1


class _Thread:
    def __init__(self, schedule: Schedule, target: Callable[[], object]) -> None:
        self._schedule = schedule
        self._target = target

    def start(self) -> None:
        if not self._schedule.starts():
            raise RuntimeError("can't start new thread")
        self._schedule.add(self._target)


def schedules(*, preemptions: int = 2, failures: int = 0) -> Iterator[Schedule]:
    """Every schedule, one after the other; run the program under each before the next is asked for."""
    prefix: list[int] | None = []
    while prefix is not None:
        schedule = Schedule(prefix, preemptions, failures)
        yield schedule
        prefix = _next(schedule.chosen, schedule.widths)


def _next(chosen: list[int], widths: list[int]) -> list[int] | None:
    for place in range(len(chosen) - 1, -1, -1):
        if chosen[place] + 1 < widths[place]:
            return [*chosen[:place], chosen[place] + 1]
    return None
