"""A machine that has no thread left when a load needs one: the call is refused or done, and the next one works."""

import threading
import time
from typing import Any

import pytest

from repoagent.errors import RepoAgentError, UnavailableError
from tests.serving.core_kit import CoreMaker, ModelWriter, RequestMaker, first, in_thread


class Threads:
    """Refuses the threads of the server whose name begins with ``refused``, as a full machine does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused = ""
        self.count = 0
        start = threading.Thread.start

        def starting(thread: threading.Thread) -> None:
            if self.refused and thread.name.startswith(self.refused):
                self.count += 1
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", starting)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    return Threads(monkeypatch)


def test_a_load_that_gets_no_thread_is_refused_and_the_next_one_is_done(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, threads: Threads
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    threads.refused = "repoagent-load-"
    for call in (core.load, core.unload):
        caller, outcome = in_thread(lambda call=call: call("m"))  # type: ignore[misc]
        caller.join(60)
        assert not caller.is_alive()
        if call == core.load:
            assert isinstance(outcome[0], UnavailableError)
            assert "no thread for a load or an unload can be started: can't start new thread" in str(outcome[0])
    threads.refused = ""
    caller, outcome = in_thread(lambda: core.load("m").outcome)
    caller.join(60)
    assert outcome == ["loaded"]
    assert first(core.infer(request_of())) == 2


def test_a_model_that_nobody_can_wait_for_is_waited_for_by_the_load_itself(
    new_core: CoreMaker,
    write_model: ModelWriter,
    request_of: RequestMaker,
    threads: Threads,
    scripted: Any,
    loader: Any,
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    core.load("m")
    (runner,) = scripted.runners
    runner.hold = threading.Event()
    infer, _ = in_thread(lambda: core.infer(request_of()))
    assert runner.running.acquire(timeout=60)
    threads.refused = "repoagent-retire"
    unload, outcome = in_thread(lambda: core.unload("m"))
    while not threads.count:
        time.sleep(0.001)
    runner.hold.set()
    unload.join(60)
    infer.join(60)
    assert outcome == [None]
    assert loader.trace[-1] == "m1 UNLOAD_COMPLETE"
    assert core._context.retirements.wait(time.monotonic())


def test_a_request_whose_load_gets_no_thread_is_answered(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, threads: Threads
) -> None:
    write_model("m", {1: "1"})
    core = new_core(on_demand=True)
    threads.refused = "repoagent-demand"
    with pytest.raises(UnavailableError, match="no thread to load model 'm' can be started"):
        core.infer(request_of())
    threads.refused = ""
    assert first(core.infer(request_of())) == 2


def test_a_load_that_hangs_when_the_time_to_stop_is_over_ends_for_its_caller(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any
) -> None:
    """The server gives up waiting for an agent that hangs; who waits for that load, or behind it, does not wait on."""
    write_model("m", {1: "1"})
    core = new_core(exit_timeout_seconds=0.05)
    loader.hold = threading.Event()
    first_load, first_outcome = in_thread(lambda: core.load("m"))
    assert loader.entered.acquire(timeout=60)
    second_load, second_outcome = in_thread(lambda: core.load("m"))
    slot = core._table.get("m")
    assert slot is not None
    while len(slot._pending) < 2:
        time.sleep(0.001)
    with pytest.raises(RepoAgentError, match="Exit timeout expired"):
        core.stop()
    for caller, outcome in ((first_load, first_outcome), (second_load, second_outcome)):
        caller.join(60)
        assert not caller.is_alive()
        assert isinstance(outcome[0], UnavailableError)
        assert "the server has stopped" in str(outcome[0])
    loader.hold.set()
