"""Unloads, and loads that meet them."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from repoagent.errors import (
    CancelledError,
    NotFoundError,
    RepoAgentError,
    UnavailableError,
)
from repoagent.serving.requests.request import InferResponse
from tests.serving.core_kit import CoreMaker, ModelWriter, RequestMaker, first, in_thread


def test_an_unloaded_model_answers_no_more_and_can_come_back(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any, request_of: RequestMaker, scripted: Any
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    core.load("m")
    core.unload("m")
    assert loader.trace == ["m1 LOAD", "m1 LOAD_COMPLETE", "m1 UNLOAD", "m1 UNLOAD_COMPLETE"]
    assert core.index() == [{"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}]
    assert scripted.models_open == 0
    assert core.ready()
    with pytest.raises(NotFoundError, match="'m' has no available versions"):
        core.infer(request_of())
    core.load("m")
    assert core.model_ready("m")


def test_unloading_what_is_not_loaded_is_fine(new_core: CoreMaker, write_model: ModelWriter) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    core.unload("m")
    core.unload("nosuch")


def test_an_unload_lets_running_and_queued_requests_finish(
    new_core: CoreMaker,
    write_model: ModelWriter,
    loader: Any,
    request_of: RequestMaker,
    scripted: Any,
    new_sender: Any,
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    core.load("m")
    (runner,) = scripted.runners
    runner.hold = threading.Event()
    infer, answers = in_thread(lambda: core.infer(request_of()))
    assert runner.running.acquire(timeout=60)
    sender = new_sender()
    core.submit(request_of(sender=sender))
    core.unload("m", wait=False)
    assert core.index()[0]["state"] == "UNLOADING"
    assert loader.trace[-1] == "m1 UNLOAD"
    with pytest.raises(UnavailableError):
        core.infer(request_of(model_version="1"))
    runner.hold.set()
    infer.join(60)
    assert isinstance(answers[0], InferResponse)
    assert first(sender.final()) == 2
    core.unload("m")
    assert core._context.retirements.wait(time.monotonic() + 60)
    assert loader.trace[-1] == "m1 UNLOAD_COMPLETE"


@pytest.mark.slow
def test_an_unload_waits_only_so_long(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, scripted: Any, new_sender: Any
) -> None:
    write_model("m", {1: "1"})
    core = new_core(drain_timeout_seconds=0.05)
    core.load("m")
    (runner,) = scripted.runners
    runner.hold = threading.Event()
    infer, answers = in_thread(lambda: core.infer(request_of()))
    assert runner.running.acquire(timeout=60)
    sender = new_sender()
    core.submit(request_of(sender=sender))
    core.unload("m")
    assert core.index()[0]["reason"] == "unloaded"
    runner.hold.set()
    infer.join(60)
    assert isinstance(answers[0], InferResponse)
    assert isinstance(sender.final().error, UnavailableError)


@pytest.mark.parametrize("stage", ["agents", "backend"])
def test_an_unload_cancels_a_load_that_is_under_way(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any, scripted: Any, stage: str
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    held = loader if stage == "agents" else scripted
    entered = loader.entered if stage == "agents" else scripted.loading
    held.hold = threading.Event()
    load, outcome = in_thread(lambda: core.load("m"))
    assert entered.acquire(timeout=60)
    slot = core._table.get("m")
    assert slot is not None
    gone = slot.unload()
    held.hold.set()
    load.join(60)
    gone.result(60)
    assert isinstance(outcome[0], CancelledError)
    assert "Newer operation has been applied" in str(outcome[0])
    assert loader.trace == ["m1 LOAD", "m1 LOAD_FAIL"]
    assert scripted.models_open == 0
    assert core.index()[0]["reason"] == "unloaded"
    assert core.ready()


def test_a_load_after_an_unload_during_a_load_wins(new_core: CoreMaker, write_model: ModelWriter, loader: Any) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    loader.hold = threading.Event()
    load, outcome = in_thread(lambda: core.load("m"))
    assert loader.entered.acquire(timeout=60)
    slot = core._table.get("m")
    assert slot is not None
    slot.unload()
    again, second = in_thread(lambda: core.load("m").outcome)
    while len(slot._pending) < 2:
        threading.Event().wait(0.001)
    loader.hold.set()
    load.join(60)
    again.join(60)
    assert isinstance(outcome[0], CancelledError)
    assert second == ["loaded"]
    assert core.model_ready("m")


def test_a_load_that_was_asked_for_after_an_unload_waits_for_it_and_is_not_cancelled_by_the_next(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any
) -> None:
    """Callers who each load, use and unload a model: the unload of the one is not meant for the load of the other."""
    write_model("m", {1: "1"})
    core = new_core()
    core.load("m")
    slot = core._table.get("m")
    assert slot is not None
    hold = threading.Event()
    held = slot._queue.submit(lambda: hold.wait(60))
    while not held.running():
        threading.Event().wait(0.001)
    unloads = [slot.unload()]
    load, outcome = in_thread(lambda: core.load("m").outcome)
    while len(slot._queue._jobs) < 2:  # the unload and the load
        threading.Event().wait(0.001)
    unloads.append(slot.unload())
    hold.set()
    load.join(60)
    for unload in unloads:
        unload.result(60).wait(60)
    assert outcome == ["loaded"]
    assert loader.trace == [
        *("m1 LOAD", "m1 LOAD_COMPLETE", "m1 UNLOAD", "m1 UNLOAD_COMPLETE"),
        *("m2 LOAD", "m2 LOAD_COMPLETE", "m2 UNLOAD", "m2 UNLOAD_COMPLETE"),
    ]
    assert not core.model_ready("m")


def test_what_must_not_be_used_any_more_cancels_every_load(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    slot_load, first_outcome = in_thread(lambda: core.load("m").outcome)
    slot_load.join(60)
    slot = core._table.get("m")
    assert slot is not None
    hold = threading.Event()
    held = slot._queue.submit(lambda: hold.wait(60))
    while not held.running():
        threading.Event().wait(0.001)
    slot.unload()
    load, outcome = in_thread(lambda: core.load("m").outcome)
    while len(slot._queue._jobs) < 2:  # the unload and the load
        threading.Event().wait(0.001)
    slot.unload(reason="the licence has ended")
    hold.set()
    load.join(60)
    assert first_outcome == ["loaded"]
    assert isinstance(outcome[0], CancelledError)
    assert str(outcome[0]) == "load failed for model 'm': the licence has ended\n"


def test_a_load_while_the_old_one_still_drains_keeps_the_states_apart(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, scripted: Any, loader: Any
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    core.load("m")
    (runner,) = scripted.runners
    runner.hold = threading.Event()
    infer, _ = in_thread(lambda: core.infer(request_of()))
    assert runner.running.acquire(timeout=60)
    core.unload("m", wait=False)
    core.load("m")
    assert core.index() == [{"name": "m", "version": "1", "state": "READY"}]
    runner.hold.set()
    infer.join(60)
    assert core._context.retirements.wait(time.monotonic() + 60)
    assert core.index() == [{"name": "m", "version": "1", "state": "READY"}]
    assert loader.trace[-1] == "m1 UNLOAD_COMPLETE"


def test_what_an_agent_says_is_heard_although_the_model_before_goes_while_it_works(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, scripted: Any, loader: Any
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    core.load("m")
    (runner,) = scripted.runners
    runner.hold = threading.Event()
    infer, _ = in_thread(lambda: core.infer(request_of()))
    assert runner.running.acquire(timeout=60)
    core.unload("m", wait=False)  # It goes when its request has ended.
    while loader.entered.acquire(blocking=False):
        pass
    loader.hold, loader.refusal = threading.Event(), "not today"
    load, outcome = in_thread(lambda: core.load("m"))
    assert loader.entered.acquire(timeout=60)
    runner.hold.set()
    infer.join(60)
    assert core._context.retirements.wait(time.monotonic() + 60)
    loader.hold.set()
    load.join(60)
    assert "agent 'a': not today" in str(outcome[0])
    assert {"name": "m", "state": "UNAVAILABLE", "reason": "agent 'a': not today"} in core.index()


def test_a_reload_storm_under_traffic_loses_no_request_and_gives_no_wrong_answer(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, add_constant: Callable[[float], bytes]
) -> None:
    write_model("m", {1: add_constant(1)}, 'backend: "onnxruntime" max_batch_size: 4')
    core = new_core()
    core.load("m")
    stop = threading.Event()
    allowed = {1.0 + offset for offset in range(1, 5)}

    def ask() -> list[object]:
        wrong: list[object] = []
        while not stop.is_set():
            try:
                answer = first(core.infer(request_of()))
            except RepoAgentError as error:
                wrong.append(error)
            else:
                if answer not in allowed:
                    wrong.append(answer)
        return wrong

    askers = [in_thread(ask) for _ in range(2)]
    for offset in range(2, 5):
        write_model("m", {1: add_constant(offset)}, f'backend: "onnxruntime" max_batch_size: {offset + 4}')
        core.load("m")
        assert first(core.infer(request_of())) == 1 + offset
    stop.set()
    for thread, wrong in askers:
        thread.join(60)
        assert wrong == [[]]
