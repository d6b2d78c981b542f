import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repoagent.api.hooks import hookimpl
from repoagent.errors import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    RepoAgentError,
    UnavailableError,
)
from repoagent.serving.core import ServingCore
from repoagent.serving.options import ControlMode
from repoagent.serving.request import InferRequest, InferResponse

CoreMaker = Callable[..., ServingCore]
ModelWriter = Callable[..., Path]
RequestMaker = Callable[..., InferRequest]


def first(response: InferResponse) -> float:
    return float(response.outputs["y"].array[0, 0])


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run ``call`` on a thread; its result or error is in the list after joining."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(call())
        except RepoAgentError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


# -- start and stop --------------------------------------------------------------------------------------------------


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
    with pytest.raises(InternalError, match=r"failed to load all models: load failed for model 'bad': .*no such luck"):
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


def test_stop_gives_up_after_the_exit_timeout(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, scripted: Any
) -> None:
    write_model("a", {1: "1"})
    core = new_core(startup_models=("a",), exit_timeout_seconds=0.05)
    (runner,) = scripted.runners
    runner.hold = threading.Event()
    infer, _ = in_thread(lambda: core.infer(request_of("a")))
    assert runner.running.acquire(timeout=60)
    with pytest.raises(InternalError, match="Exit timeout expired"):
        core.stop()
    runner.hold.set()
    infer.join(60)


def test_stop_cancels_a_load_that_is_under_way(new_core: CoreMaker, write_model: ModelWriter, loader: Any) -> None:
    write_model("a", {1: "1"})
    core = new_core()
    loader.hold = threading.Event()
    load, outcome = in_thread(lambda: core.load("a"))
    assert loader.entered.acquire(timeout=60)
    stop, _ = in_thread(core.stop)
    while not core._table.slots()[0]._pending or not next(iter(core._table.slots()[0]._pending)).is_set():
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
    while not all(pending.is_set() for slot in core._table.slots() for pending in slot._pending):
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
    while not all(pending.is_set() for slot in core._table.slots() for pending in slot._pending):
        threading.Event().wait(0.001)
    loader.hold.set()
    start.join(60)
    stop.join(60)
    assert isinstance(outcome[0], InternalError | UnavailableError)  # As far as the start had come.
    assert stopped == [None]
    assert loader.trace.count("a1 LOAD") == loader.trace.count("a1 LOAD_FAIL")
    assert scripted.models_open == 0


# -- loads -----------------------------------------------------------------------------------------------------------


def test_a_loaded_model_answers_and_shows_in_the_index(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker
) -> None:
    write_model("m", {1: "0.5"})
    core = new_core()
    assert core.load("m").outcome == "loaded"
    response = core.infer(request_of(id="r1"))
    assert (response.model_name, response.model_version, response.id) == ("m", "1", "r1")
    np.testing.assert_array_equal(response.outputs["y"].array, [[1.5, 2.5, 3.5, 4.5]])
    assert core.index() == [{"name": "m", "version": "1", "state": "READY"}]


def test_the_highest_version_answers_unless_the_policy_or_the_request_says_otherwise(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker
) -> None:
    write_model("m", {1: "1", 2: "2", 10: "10"}, 'backend: "scripted" version_policy { specific { versions: [1, 2] } }')
    core = new_core()
    core.load("m")
    assert first(core.infer(request_of())) == 3
    assert first(core.infer(request_of(model_version="1"))) == 2
    assert first(core.infer(request_of(model_version="01"))) == 2
    with pytest.raises(NotFoundError) as caught:
        core.infer(request_of(model_version="10"))
    assert str(caught.value) == "Request for unknown model: 'm' version 10 is not found"
    with pytest.raises(InvalidArgumentError) as invalid:
        core.infer(request_of(model_version="one"))
    assert str(invalid.value) == "failed to get model version from specified version string 'one'"


def test_a_misspelt_model_of_a_load_gets_a_suggestion(new_core: CoreMaker, write_model: ModelWriter) -> None:
    write_model("digits", {1: "1"})
    core = new_core()
    with pytest.raises(InternalError, match=r"model not found in any model repository; did you mean 'digits'\?$"):
        core.load("digit")


def test_an_unknown_model_is_told_in_tritons_words(new_core: CoreMaker, request_of: RequestMaker) -> None:
    core = new_core()
    for ask in (lambda: core.infer(request_of("x")), lambda: core.model_metadata("x"), lambda: core.model_config("x")):
        with pytest.raises(NotFoundError) as caught:
            ask()
        assert str(caught.value) == "Request for unknown model: 'x' is not found"


def test_loading_a_model_that_is_nowhere_fails_and_leaves_no_trace(new_core: CoreMaker) -> None:
    core = new_core()
    for name in ("nosuch", "..", "a/b", "", "n" * 300):
        with pytest.raises(InternalError) as caught:
            core.load(name)
        assert str(caught.value).startswith(f"failed to load '{name}', failed to poll from model repository")
    assert core.index() == []
    assert core._table.slots() == []


def test_a_model_in_two_repositories_is_refused(
    new_core: CoreMaker, write_model: ModelWriter, repository: Path, tmp_path: Path
) -> None:
    write_model("m", {1: "1"})
    other = tmp_path / "other"
    (other / "m" / "1").mkdir(parents=True)
    core = new_core(repositories=(str(repository), str(other)))
    with pytest.raises(InternalError, match="not unique across all model repositories"):
        core.load("m")


def test_a_refusal_by_an_agent_reaches_the_caller_the_index_and_the_report(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any, request_of: RequestMaker
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    loader.refusal = "the digest is wrong"
    with pytest.raises(InternalError) as caught:
        core.load("m")
    assert str(caught.value) == (
        "failed to load 'm', failed to poll from model repository: agent 'a': the digest is wrong"
    )
    assert core.index() == [{"name": "m", "state": "UNAVAILABLE", "reason": "agent 'a': the digest is wrong"}]
    report = core.report("m")
    assert report is not None
    assert (report.outcome, report.error) == ("failed", "agent 'a': the digest is wrong")
    assert core.ready()
    with pytest.raises(NotFoundError, match="'m' is not found"):
        core.infer(request_of())
    loader.refusal = None
    core.load("m")
    assert core.index() == [{"name": "m", "version": "1", "state": "READY"}]


def test_a_model_that_cannot_be_loaded_is_told_in_tritons_words(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any
) -> None:
    write_model("m", {1: "fail no such luck"})
    core = new_core()
    with pytest.raises(InvalidArgumentError) as caught:
        core.load("m")
    assert str(caught.value) == (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: RuntimeError: no such luck;\n"
    )
    reason = "Internal: RuntimeError: no such luck"
    assert core.index() == [{"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": reason}]
    assert loader.trace == ["m1 LOAD", "m1 LOAD_FAIL"]
    report = core.report("m")
    assert report is not None
    assert report.outcome == "failed"


def test_a_backend_that_the_operator_forbids_runs_nothing(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any, scripted: Any
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    loader.forbidden = "scripted"
    with pytest.raises(InvalidArgumentError, match="the policy does not allow backend 'scripted'"):
        core.load("m")
    assert not scripted.loading.acquire(blocking=False)


def test_all_versions_load_or_none(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any, scripted: Any, request_of: RequestMaker
) -> None:
    write_model("m", {1: "1", 2: "fail no", 3: "3"}, 'backend: "scripted" version_policy { all {} }')
    core = new_core()
    with pytest.raises(InvalidArgumentError, match="version 2 is at UNAVAILABLE"):
        core.load("m")
    states = [(entry["version"], entry["state"], entry["reason"]) for entry in core.index()]
    assert states == [
        ("1", "UNAVAILABLE", "unloaded"),
        ("2", "UNAVAILABLE", "Internal: RuntimeError: no"),
        ("3", "UNAVAILABLE", "unloaded"),
    ]
    assert scripted.models_open == 0
    assert all(runner.closed for runner in scripted.runners)
    assert loader.trace == ["m1 LOAD", "m1 LOAD_FAIL"]
    with pytest.raises(NotFoundError, match="'m' has no available versions"):
        core.infer(request_of())
    with pytest.raises(UnavailableError, match="'m' version 1 is not at ready state"):
        core.infer(request_of(model_version="1"))


def test_a_model_without_versions_is_refused(new_core: CoreMaker, write_model: ModelWriter) -> None:
    write_model("m", {})
    core = new_core()
    with pytest.raises(InvalidArgumentError) as caught:
        core.load("m")
    reason = (
        "at least one version must be available under the version policy of model 'm': "
        "there is no version directory (1, 2, ...)"
    )
    assert str(caught.value) == f"load failed for model 'm': {reason}\n"
    assert core.index() == [{"name": "m", "state": "UNAVAILABLE", "reason": reason}]


def test_no_line_of_the_log_ends_with_an_empty_one(
    new_core: CoreMaker, write_model: ModelWriter, caplog: pytest.LogCaptureFixture
) -> None:
    write_model("m", {1: "fail no such luck"})
    with pytest.raises(InvalidArgumentError, match=r";\n$"):  # Triton's text, which a client gets as it is
        new_core(load_retry_count=1).load("m")
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("repoagent")]
    assert any(message.startswith("load failed for model 'm'") for message in messages)
    assert [message for message in messages if message != message.rstrip()] == []


def test_a_failed_load_is_tried_again_as_often_as_told(
    new_core: CoreMaker, write_model: ModelWriter, scripted: Any
) -> None:
    write_model("m", {1: "fail no"})
    core = new_core(load_retry_count=2)
    with pytest.raises(InvalidArgumentError):
        core.load("m")
    assert [scripted.loading.acquire(blocking=False) for _ in range(4)] == [True, True, True, False]


def test_loading_again_with_nothing_changed_calls_no_agent(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    assert core.load("m") == core.load("m")
    assert loader.trace == ["m1 LOAD", "m1 LOAD_COMPLETE"]


def test_a_changed_model_is_reloaded_new_one_up_first(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any, scripted: Any, request_of: RequestMaker
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    core.load("m")
    write_model("m", {1: "22"})
    core.load("m")
    assert first(core.infer(request_of())) == 23
    assert loader.trace == [
        "m1 LOAD",
        "m1 LOAD_COMPLETE",
        "m2 LOAD",
        "m1 UNLOAD",
        "m2 LOAD_COMPLETE",
        "m1 UNLOAD_COMPLETE",
    ]
    assert [runner.closed for runner in scripted.runners] == [True, False]
    assert core.index() == [{"name": "m", "version": "1", "state": "READY"}]


def test_a_reload_with_other_versions_retires_those_that_are_gone(
    new_core: CoreMaker, write_model: ModelWriter
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    core.load("m")
    write_model("m", {2: "2"})
    core.load("m")
    assert core.index() == [
        {"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
        {"name": "m", "version": "2", "state": "READY"},
    ]
    assert core.ready()


@pytest.mark.parametrize("stage", ["agents", "backend"])
def test_after_a_reload_that_failed_the_old_model_serves_on(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any, request_of: RequestMaker, stage: str
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    core.load("m")
    write_model("m", {1: "fail no" if stage == "backend" else "22"})
    loader.refusal = "no" if stage == "agents" else None
    with pytest.raises(RepoAgentError):
        core.load("m")
    assert first(core.infer(request_of())) == 2
    assert core.index() == [{"name": "m", "version": "1", "state": "READY"}]
    assert loader.trace == ["m1 LOAD", "m1 LOAD_COMPLETE", "m2 LOAD", "m2 LOAD_FAIL"]
    core.stop()
    assert loader.trace[-2:] == ["m1 UNLOAD", "m1 UNLOAD_COMPLETE"]


def test_two_loads_of_one_model_at_once_load_it_once(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    loader.hold = threading.Event()
    loads = [in_thread(lambda: core.load("m").outcome) for _ in range(4)]
    assert loader.entered.acquire(timeout=60)
    loader.hold.set()
    for thread, _ in loads:
        thread.join(60)
    assert [outcome for _, outcome in loads] == [["loaded"]] * 4
    assert loader.trace == ["m1 LOAD", "m1 LOAD_COMPLETE"]


def test_different_models_load_at_once_up_to_the_limit(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any
) -> None:
    for name in ("a", "b", "c"):
        write_model(name, {1: "1"})
    core = new_core(load_threads=2)
    loader.hold = threading.Event()
    loads = [in_thread(lambda name=name: core.load(name)) for name in ("a", "b", "c")]  # type: ignore[misc]
    assert loader.entered.acquire(timeout=60)
    assert loader.entered.acquire(timeout=60)
    assert not loader.entered.acquire(timeout=0.05)
    loader.hold.set()
    for thread, _ in loads:
        thread.join(60)
    assert all(core.model_ready(name) for name in ("a", "b", "c"))


def test_a_model_is_shown_as_loading_while_its_agents_run(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    loader.hold = threading.Event()
    load, _ = in_thread(lambda: core.load("m"))
    assert loader.entered.acquire(timeout=60)
    assert core.index() == [{"name": "m", "state": "LOADING"}]
    assert not core.model_ready("m")
    assert core.ready()
    loader.hold.set()
    load.join(60)


# -- loads with content ----------------------------------------------------------------------------------------------


def test_a_configuration_given_with_the_load_replaces_the_file(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    core.load("m", config='{"backend": "scripted", "instance_group": [{"count": "3", "kind": "KIND_CPU"}]}')
    assert core.model_config("m")["instance_group"][0]["count"] == 3
    core.load("m", config=b'{"backend": "scripted", "instance_group": [{"count": 3, "kind": "KIND_CPU"}]}')
    assert loader.trace == ["m1 LOAD", "m1 LOAD_COMPLETE"]
    core.load("m")
    assert core.model_config("m")["instance_group"][0]["count"] == 1


def test_files_given_with_the_load_make_a_model_that_lies_nowhere(
    new_core: CoreMaker, request_of: RequestMaker
) -> None:
    core = new_core()
    core.load("m", config='{"backend": "scripted"}', files={"file:3/model.txt": b"7"})
    assert first(core.infer(request_of(model_version="3"))) == 8
    core.unload("m")
    assert core.index() == [{"name": "m", "version": "3", "state": "UNAVAILABLE", "reason": "unloaded"}]


def test_files_without_a_configuration_are_refused(new_core: CoreMaker) -> None:
    with pytest.raises(InvalidArgumentError, match=r"failed to load 'm', .* requires providing config"):
        new_core().load("m", files={"1/model.txt": b"7"})


def test_files_that_would_lie_outside_the_model_are_refused(new_core: CoreMaker) -> None:
    with pytest.raises(InternalError, match="failed to load 'm', failed to poll from model repository"):
        new_core().load("m", config='{"backend": "scripted"}', files={"../1/model.txt": b"7"})


def test_a_broken_configuration_given_with_the_load_is_an_error_of_the_caller(new_core: CoreMaker) -> None:
    with pytest.raises(InvalidArgumentError, match="failed to load 'm'"):
        new_core().load("m", config="{nonsense")


# -- unloads ---------------------------------------------------------------------------------------------------------


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


# -- polling ---------------------------------------------------------------------------------------------------------


def test_polling_follows_the_repository(
    new_core: CoreMaker, write_model: ModelWriter, repository: Path, loader: Any, request_of: RequestMaker
) -> None:
    write_model("kept", {1: "1"})
    gone = write_model("gone", {1: "1"})
    core = new_core(control_mode=ControlMode.POLL, poll_seconds=3600)
    write_model("new", {1: "3"})
    write_model("kept", {1: "22"})
    for path in sorted(gone.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    gone.rmdir()
    core.poll()
    assert first(core.infer(request_of("new"))) == 4
    assert first(core.infer(request_of("kept"))) == 23
    assert not core.model_ready("gone")
    loads = len(loader.trace)
    core.poll()
    assert len(loader.trace) == loads
    with pytest.raises(UnavailableError):
        core.load("new")


def test_polling_tries_a_failed_model_again_only_when_its_files_change(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any
) -> None:
    write_model("m", {1: "fail no"})
    core = new_core(control_mode=ControlMode.POLL, poll_seconds=3600, exit_on_error=False)
    core.poll()
    assert loader.trace == ["m1 LOAD", "m1 LOAD_FAIL"]
    write_model("m", {1: "1"})
    core.poll()
    assert core.model_ready("m")


def test_polling_unloads_nothing_while_a_repository_cannot_be_listed(
    new_core: CoreMaker, write_model: ModelWriter, repository: Path
) -> None:
    write_model("m", {1: "1"})
    core = new_core(control_mode=ControlMode.POLL, poll_seconds=3600)
    repository.rename(repository.with_name("elsewhere"))
    with pytest.raises(RepoAgentError):
        core.poll()
    assert core.model_ready("m")


def test_the_poll_thread_polls(new_core: CoreMaker, write_model: ModelWriter, scripted: Any) -> None:
    core = new_core(control_mode=ControlMode.POLL, poll_seconds=0.01)
    write_model("late", {1: "1"})
    assert scripted.loading.acquire(timeout=60)
    core.stop()


# -- questions -------------------------------------------------------------------------------------------------------


def test_metadata_names_the_server_and_its_extensions(new_core: CoreMaker) -> None:
    metadata = new_core(server_id="edge-7").metadata()
    assert metadata["name"] == "edge-7"
    assert {"model_repository", "binary_tensor_data", "statistics"} <= set(metadata["extensions"])


def test_model_metadata_lists_the_ready_versions(new_core: CoreMaker, write_model: ModelWriter) -> None:
    write_model("m", {1: "1", 2: "2"}, 'backend: "scripted" version_policy { all {} }')
    core = new_core()
    core.load("m")
    assert core.model_metadata("m")["versions"] == ["1", "2"]
    assert core.model_metadata("m", "1")["versions"] == ["1"]
    assert core.model_metadata("m")["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]


def test_secrets_are_redacted_in_the_configuration_that_is_shown(new_core: CoreMaker, write_model: ModelWriter) -> None:
    write_model("m", {1: "1"}, 'backend: "scripted" parameters { key: "api_key" value { string_value: "hunter2" } }')
    core = new_core()
    core.load("m")
    assert "hunter2" not in str(core.model_config("m"))


def test_statistics_count_requests_and_are_refused_for_models_that_are_not_there(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    core.load("m")
    for _ in range(3):
        core.infer(request_of())
    (entry,) = core.statistics("m")["model_stats"]
    assert (entry["name"], entry["version"], entry["inference_count"]) == ("m", "1", 3)
    assert core.statistics() == core.statistics("m", "1")
    with pytest.raises(InvalidArgumentError, match="requested model 'x' is not available"):
        core.statistics("x")
    with pytest.raises(InvalidArgumentError, match="requested model version is not available for model 'm'"):
        core.statistics("m", "9")
    (metrics,) = core.metrics()
    assert (metrics.name, metrics.version, metrics.running, metrics.statistics.success) == ("m", "1", 0, 3)


def test_an_observer_with_an_unknown_hook_is_refused(new_core: CoreMaker) -> None:
    class Listener:
        @hookimpl
        def load_finnished(self, event: object) -> None: ...

    with pytest.raises(InvalidArgumentError, match="load_finnished"):
        new_core().observe(Listener(), "listener")


def test_a_submitted_request_to_an_unknown_model_is_answered(
    new_core: CoreMaker, request_of: RequestMaker, new_sender: Any
) -> None:
    sender = new_sender()
    new_core().submit(request_of("x", sender=sender, id="r"))
    response = sender.final()
    assert response.id == "r"
    assert isinstance(response.error, NotFoundError)


def test_an_invalid_submitted_request_is_answered(
    new_core: CoreMaker, write_model: ModelWriter, new_sender: Any, request_of: RequestMaker
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    core.load("m")
    sender = new_sender()
    core.submit(request_of(values=[1, 2, 3], sender=sender))
    assert isinstance(sender.final().error, InvalidArgumentError)


def test_a_request_can_be_checked_without_being_executed(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker
) -> None:
    write_model("a", {1: "1"})
    core = new_core(startup_models=("a",))
    request = request_of("a")
    core.check(request)
    assert core.find(request).version == 1
    assert core.statistics("a")["model_stats"][0]["execution_count"] == 0
    with pytest.raises(NotFoundError):
        core.check(request_of("b"))
    request.inputs.clear()
    with pytest.raises(InvalidArgumentError):
        core.check(request)


def test_an_executed_request_knows_its_times(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker
) -> None:
    write_model("a", {1: "1"})
    core = new_core(startup_models=("a",))
    request = request_of("a")
    core.infer(request)
    assert request.times is not None
    assert [request.arrival_ns, *request.times] == sorted([request.arrival_ns, *request.times])
