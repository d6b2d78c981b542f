"""One object per agent, initialised before its first user and finalised after its last."""

import threading
from collections.abc import Callable

import pytest

from repoagent.api import Agent
from repoagent.errors import AgentError, AgentNotFoundError, AgentRefusedError
from repoagent.loader.agent_pool import AgentPool


class Recorder:
    """Makes agent classes that write down what is called, and can be told to raise."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.raising: dict[str, BaseException] = {}
        self.before_initialize: Callable[[], None] = lambda: None

    def call(self, what: str) -> None:
        self.calls.append(what)
        if what in self.raising:
            raise self.raising[what]

    def load(self, name: str) -> type[Agent]:
        recorder = self

        class Recording(Agent):
            api_version = 1

            def __init__(self) -> None:
                recorder.call(f"{name} new")

            def initialize(self) -> None:
                recorder.before_initialize()
                recorder.call(f"{name} init")

            def finalize(self) -> None:
                recorder.call(f"{name} fini")

        return Recording


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def pool(recorder: Recorder) -> AgentPool:
    return AgentPool(recorder.load)


def test_users_share_one_object_that_ends_with_the_last(recorder: Recorder, pool: AgentPool) -> None:
    first, second = pool.acquire("a"), pool.acquire("a")
    assert first is second
    assert pool.in_use() == {"a": 2}
    pool.release("a")
    assert recorder.calls == ["a new", "a init"]
    pool.release("a")
    assert recorder.calls == ["a new", "a init", "a fini"]
    assert pool.in_use() == {}


def test_after_the_last_user_a_new_object_is_made(recorder: Recorder, pool: AgentPool) -> None:
    first = pool.acquire("a")
    pool.release("a")
    assert pool.acquire("a") is not first
    assert recorder.calls == ["a new", "a init", "a fini", "a new", "a init"]


def test_a_ready_made_object_is_used_as_it_is() -> None:
    class Ready(Agent):
        api_version = 1

    ready = Ready()
    assert AgentPool(lambda name: ready).acquire("a") is ready


def test_a_failing_initialize_is_followed_by_finalize_and_tried_anew_next_time(
    recorder: Recorder, pool: AgentPool
) -> None:
    recorder.raising["a init"] = ValueError("no licence")
    with pytest.raises(AgentRefusedError, match=r"^agent 'a': no licence$"):
        pool.acquire("a")
    assert recorder.calls == ["a new", "a init", "a fini"]
    recorder.raising.clear()
    pool.acquire("a")
    assert pool.in_use() == {"a": 1}


def test_when_initialize_and_finalize_both_fail_the_first_error_counts(recorder: Recorder, pool: AgentPool) -> None:
    recorder.raising = {"a init": ValueError("first"), "a fini": ValueError("second")}
    with pytest.raises(AgentRefusedError, match="first"):
        pool.acquire("a")


def test_a_failing_constructor_is_a_refusal_without_finalize(recorder: Recorder, pool: AgentPool) -> None:
    recorder.raising["a new"] = KeyboardInterrupt()
    with pytest.raises(AgentRefusedError, match=r"^agent 'a': KeyboardInterrupt$"):
        pool.acquire("a")
    assert recorder.calls == ["a new"]


def test_a_failing_finalize_is_told_and_the_agent_is_gone_all_the_same(recorder: Recorder, pool: AgentPool) -> None:
    recorder.raising["a fini"] = SystemExit(4)
    pool.acquire("a")
    with pytest.raises(AgentRefusedError, match=r"^agent 'a': SystemExit: 4$"):
        pool.release("a")
    assert pool.in_use() == {}


def test_an_agent_that_cannot_be_found_is_passed_on(pool: AgentPool) -> None:
    def missing(name: str) -> type[Agent]:
        raise AgentNotFoundError(name, "no such agent")

    with pytest.raises(AgentNotFoundError):
        AgentPool(missing).acquire("a")


def run_together(count: int, work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def test_concurrent_first_users_initialise_once(recorder: Recorder, pool: AgentPool) -> None:
    barrier = threading.Barrier(8)

    def use() -> None:
        barrier.wait()
        pool.acquire("a")

    run_together(8, use)
    assert recorder.calls == ["a new", "a init"]
    assert pool.in_use() == {"a": 8}


def test_everybody_who_waited_sees_the_failure_of_the_one_attempt(recorder: Recorder) -> None:
    waiting = threading.Semaphore(0)

    class CountingPool(AgentPool):
        def _slot(self, name: str):  # type: ignore[no-untyped-def]
            slot = super()._slot(name)
            waiting.release()
            return slot

    pool = CountingPool(recorder.load)

    def wait_for_others() -> None:
        for _ in range(6):
            assert waiting.acquire(timeout=60)

    recorder.before_initialize = wait_for_others
    recorder.raising["a init"] = ValueError("broken")
    errors: list[str] = []

    def use() -> None:
        try:
            pool.acquire("a")
        except AgentError as error:
            errors.append(str(error))

    run_together(6, use)
    assert errors == ["agent 'a': broken"] * 6
    # Between taking the slot and reading its counter a thread may be overtaken; it then makes an attempt of its own.
    assert recorder.calls.count("a init") <= 2


def test_a_new_user_waits_until_the_old_object_is_finalised(recorder: Recorder) -> None:
    finalising, go_on = threading.Event(), threading.Event()

    class Slow(Agent):
        api_version = 1

        def initialize(self) -> None:
            recorder.call("init")

        def finalize(self) -> None:
            finalising.set()
            assert go_on.wait(60)
            recorder.call("fini")

    pool = AgentPool(lambda name: Slow)
    pool.acquire("a")
    releasing = threading.Thread(target=pool.release, args=("a",))
    releasing.start()
    assert finalising.wait(60)
    acquiring = threading.Thread(target=pool.acquire, args=("a",))
    acquiring.start()
    go_on.set()
    releasing.join(60)
    acquiring.join(60)
    assert recorder.calls == ["init", "fini", "init"]


def test_different_names_do_not_wait_for_each_other() -> None:
    barrier = threading.Barrier(2)

    class Meeting(Agent):
        api_version = 1

        def initialize(self) -> None:
            barrier.wait(60)

    pool = AgentPool(lambda name: Meeting)
    threads = [threading.Thread(target=pool.acquire, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert pool.in_use() == {"a": 1, "b": 1}
