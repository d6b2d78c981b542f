"""The core starts and stops."""

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from repoagent.errors import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    RepoAgentError,
    UnavailableError,
)
from repoagent.serving.assembly import ControlMode
from repoagent.serving.requests.request import InferResponse
from tests.serving.core_kit import CoreMaker, ModelWriter, RequestMaker, first, in_thread, loads_cancelled


def test_mode_none_loads_everything_at_the_start_and_takes_no_orders(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker
) -> None:
    write_model("a", {1: "1"})
    write_model("b", {1: "2"})
    core = new_core(control_mode=ControlMode.NONE)
    assert [first(core.infer(request_of(name))) for name in "ab"] == [2, 3]
    with pytest.raises(UnavailableError) as caught:
        core.load("a")
    assert str(caught.value) == "explicit model load / unload is not allowed if polling is enabled"
    with pytest.raises(UnavailableError):
        core.unload("a")


def test_explicit_mode_loads_the_startup_models_only(new_core: CoreMaker, write_model: ModelWriter) -> None:
    write_model("a", {1: "1"})
    write_model("b", {1: "2"})
    core = new_core(startup_models=("b",))
    assert (core.model_ready("a"), core.model_ready("b")) == (False, True)
    assert core.index() == [{"name": "a"}, {"name": "b", "version": "1", "state": "READY"}]
    assert core.index(ready_only=True) == [{"name": "b", "version": "1", "state": "READY"}]


def test_while_a_repository_cannot_be_listed_the_index_has_its_models_as_they_were(
    new_core: CoreMaker, write_model: ModelWriter, repository: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "others" / "c").mkdir(parents=True)
    write_model("a", {1: "1"})
    write_model("b", {1: "2"})
    core = new_core(repositories=(str(repository), str(tmp_path / "others")), startup_models=("a",))
    ready = {"name": "a", "version": "1", "state": "READY"}
    before = core.index()
    assert before == [ready, {"name": "b"}, {"name": "c"}]
    repository.rename(tmp_path / "away")
    reason = f"cannot list model repository {repository}: it does not exist"
    for _ in range(2):
        unknown = {"name": "b", "state": "UNAVAILABLE", "reason": reason}
        assert core.index() == [ready, unknown, {"name": "c"}]
    assert core.index(ready_only=True) == [ready]
    assert caplog.text.count(f"{reason}; the index has its models as they were listed last") == 1
    (tmp_path / "away").rename(repository)
    with caplog.at_level(logging.INFO):
        assert core.index() == before
    assert f"model repository {repository} can be listed again" in caplog.text


def test_a_star_among_the_startup_models_means_all(new_core: CoreMaker, write_model: ModelWriter) -> None:
    write_model("a", {1: "1"})
    write_model("b", {1: "2"})
    core = new_core(startup_models=("*",))
    assert core.model_ready("a")
    assert core.model_ready("b")


def test_a_bad_model_at_the_start_ends_the_start_and_the_good_ones_are_unloaded(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any
) -> None:
    write_model("good", {1: "1"})
    write_model("bad", {1: "fail no such luck"})
    core = new_core(start=False, control_mode=ControlMode.NONE)
    with pytest.raises(InternalError, match=r"failed to load all models: .*no such luck.*--exit-on-error=false"):
        core.start()
    assert loader.trace[-2:] == ["good1 UNLOAD", "good1 UNLOAD_COMPLETE"]
    assert not core.live()


def test_of_many_bad_models_the_first_reasons_are_told(new_core: CoreMaker, write_model: ModelWriter) -> None:
    for name in "abcde":
        write_model(name, {1: f"fail no luck for {name}"})
    with pytest.raises(
        InternalError, match=r"no luck for a; .*no luck for b; .*no luck for c; d, e failed too, see the"
    ):
        new_core(start=False, control_mode=ControlMode.NONE).start()


def test_with_exit_on_error_off_the_server_starts_with_what_is_good(
    new_core: CoreMaker, write_model: ModelWriter
) -> None:
    write_model("good", {1: "1"})
    write_model("bad", {1: "fail no such luck"})
    core = new_core(start=False, control_mode=ControlMode.NONE, exit_on_error=False)
    assert core.start() == ["bad"]
    assert core.live()
    assert not core.ready()
    assert core.model_ready("good")


def test_readiness_ignores_failed_models_unless_it_is_strict(new_core: CoreMaker, write_model: ModelWriter) -> None:
    write_model("bad", {1: "fail no such luck"})
    core = new_core(control_mode=ControlMode.NONE, exit_on_error=False, strict_readiness=False)
    assert core.ready()


def test_only_the_models_named_count_for_readiness_where_some_are_named(
    new_core: CoreMaker, write_model: ModelWriter
) -> None:
    write_model("bad", {1: "fail no such luck"})
    write_model("good", {1: "1"})
    core = new_core(control_mode=ControlMode.NONE, exit_on_error=False, ready_models=("good",))
    assert core.ready()
    core = new_core(control_mode=ControlMode.NONE, exit_on_error=False, ready_models=("good", "bad"))
    assert not core.ready()


def test_a_server_that_drains_is_not_ready_and_serves_on(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker
) -> None:
    write_model("a", {1: "1"})
    core = new_core(control_mode=ControlMode.NONE)
    assert core.ready()
    core.begin_drain()
    assert (core.ready(), core.live(), core.model_ready("a")) == (False, True, True)
    assert first(core.infer(request_of("a"))) == 2


def test_a_repository_that_does_not_exist_is_an_error_at_the_start(new_core: CoreMaker, tmp_path: Path) -> None:
    core = new_core(start=False, repositories=(str(tmp_path / "nowhere"),))
    with pytest.raises(NotFoundError, match="nowhere"):
        core.start()


def test_a_server_without_a_repository_is_refused(new_core: CoreMaker) -> None:
    with pytest.raises(InvalidArgumentError, match="--model-repository must be specified"):
        new_core(repositories=())


def test_stop_unloads_every_model_through_its_agents_and_refuses_requests(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, loader: Any, new_sender: Any
) -> None:
    write_model("a", {1: "1"})
    core = new_core(startup_models=("a",))
    core.stop()
    assert loader.trace == ["a1 LOAD", "a1 LOAD_COMPLETE", "a1 UNLOAD", "a1 UNLOAD_COMPLETE"]
    with pytest.raises(UnavailableError, match="Server not ready"):
        core.infer(request_of("a"))
    sender = new_sender()
    core.submit(request_of("a", sender=sender))
    assert isinstance(sender.final().error, UnavailableError)
    core.stop()


def test_stop_waits_for_running_requests(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, scripted: Any
) -> None:
    write_model("a", {1: "1"})
    core = new_core(startup_models=("a",))
    (runner,) = scripted.runners
    runner.hold = threading.Event()
    infer, answers = in_thread(lambda: core.infer(request_of("a")))
    assert runner.running.acquire(timeout=60)
    stop, stopped = in_thread(core.stop)
    stop.join(0.1)
    assert stop.is_alive()
    runner.hold.set()
    stop.join(60)
    infer.join(60)
    assert stopped == [None]
    assert isinstance(answers[0], InferResponse)


def test_stop_gives_up_after_the_exit_timeout(new_core: CoreMaker, write_model: ModelWriter, scripted: Any) -> None:
    write_model("a", {1: "1"})
    core = new_core(startup_models=("a",), exit_timeout_seconds=0.05)
    (runner,) = scripted.runners
    hold = threading.Event()
    runner.close = lambda: hold.wait(60)
    with pytest.raises(InternalError, match="Exit timeout expired"):
        core.stop()
    hold.set()


def test_stop_cancels_a_load_that_is_under_way(new_core: CoreMaker, write_model: ModelWriter, loader: Any) -> None:
    write_model("a", {1: "1"})
    core = new_core()
    loader.hold = threading.Event()
    load, outcome = in_thread(lambda: core.load("a"))
    assert loader.entered.acquire(timeout=60)
    stop, _ = in_thread(core.stop)
    while not any(loads_cancelled(core._table.slots())):
        threading.Event().wait(0.001)
    loader.hold.set()
    stop.join(60)
    load.join(60)
    assert isinstance(outcome[0], CancelledError)
    assert loader.trace == ["a1 LOAD", "a1 LOAD_FAIL"]


def test_an_unload_does_not_wait_for_the_loads_of_others(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any
) -> None:
    for name in ("loaded", "held", "waiting"):
        write_model(name, {1: "1"})
    core = new_core(startup_models=("loaded",), load_threads=1)
    assert loader.entered.acquire(timeout=60)
    loader.hold = threading.Event()
    load, _ = in_thread(lambda: core.load("held"))
    assert loader.entered.acquire(timeout=60)
    waiting, outcome = in_thread(lambda: core.load("waiting"))
    while core._table.get("waiting") is None:
        threading.Event().wait(0.001)
    core.unload("loaded")
    core.unload("waiting")
    waiting.join(60)
    assert isinstance(outcome[0], CancelledError)
    assert not core.model_ready("loaded")
    loader.hold.set()
    load.join(60)
    assert core.model_ready("held")


def test_stop_cancels_what_a_poll_loads(new_core: CoreMaker, write_model: ModelWriter, loader: Any) -> None:
    core = new_core(control_mode=ControlMode.POLL, poll_seconds=0.01, exit_timeout_seconds=60)
    loader.hold = threading.Event()
    write_model("a", {1: "1"})
    assert loader.entered.acquire(timeout=60)
    stop, stopped = in_thread(core.stop)
    while not all(loads_cancelled(core._table.slots())):
        threading.Event().wait(0.001)
    loader.hold.set()
    stop.join(60)
    assert stopped == [None]
    assert loader.trace == ["a1 LOAD", "a1 LOAD_FAIL"]


def test_stop_during_the_start_ends_it_and_no_model_is_left(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any, scripted: Any
) -> None:
    for name in "abcdef":
        write_model(name, {1: "1"})
    core = new_core(start=False, control_mode=ControlMode.NONE, load_threads=2)
    loader.hold = threading.Event()
    start, outcome = in_thread(core.start)
    assert loader.entered.acquire(timeout=60)
    assert loader.entered.acquire(timeout=60)
    stop, stopped = in_thread(core.stop)
    while not all(loads_cancelled(core._table.slots())):
        threading.Event().wait(0.001)
    loader.hold.set()
    start.join(60)
    stop.join(60)
    assert isinstance(outcome[0], InternalError | UnavailableError)  # As far as the start had come.
    assert stopped == [None]
    assert loader.trace.count("a1 LOAD") == loader.trace.count("a1 LOAD_FAIL")
    assert scripted.models_open == 0


@pytest.mark.parametrize("mode", ControlMode)
def test_with_exit_on_error_off_a_repository_that_is_not_there_yet_is_waited_for(
    new_core: CoreMaker,
    write_model: ModelWriter,
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    mode: ControlMode,
) -> None:
    """L30: the server ended."""
    monkeypatch.setattr("repoagent.serving.core.AGAIN_SECONDS", 0.01)
    write_model("near", {1: "1"})
    late = tmp_path / "late"
    options = {"repositories": (str(repository), str(late)), "control_mode": mode, "startup_models": ("near",)}
    core = new_core(start=False, exit_on_error=False, **options)
    assert core.start() == []
    assert core.live()
    assert not core.ready()
    assert (
        caplog.messages.count(
            f"cannot list model repository {late}: it does not exist; this server is not ready until that has changed, "
            "and loads no model before"
        )
        == 1
    )
    late.mkdir()
    while not core.ready():
        time.sleep(0.01)
    assert core.model_ready("near")
    core.stop()
    with pytest.raises(RepoAgentError, match="elsewhere: it does not exist"):
        new_core(start=False, repositories=(str(tmp_path / "elsewhere"),)).start()
