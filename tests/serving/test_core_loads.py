"""Loads and reloads."""

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repoagent.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    RepoAgentError,
    UnavailableError,
)
from tests.serving.core_kit import CoreMaker, ModelWriter, RequestMaker, first, in_thread


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


@pytest.mark.parametrize(("name", "size"), [("x" * 256, 256), ("\u00e9" * 150, 300)])
def test_a_load_of_a_name_that_no_directory_can_have_names_the_cause(
    new_core: CoreMaker, write_model: ModelWriter, name: str, size: int
) -> None:
    write_model("digits", {1: "1"})
    core = new_core()
    reason = f"model not found in any model repository; its name has {size} bytes, and that of a directory at most 255"
    with pytest.raises(InternalError, match=re.escape(reason)):
        core.load(name)
    with pytest.raises(InvalidArgumentError, match=r"has more than 255 bytes$"):
        core.load(name, config='{"backend": "python"}')
    with pytest.raises(InternalError, match=r"not found in any model repository$"):
        core.load("x" * 255)


def test_a_file_of_a_load_with_a_name_that_no_filesystem_takes_is_refused(new_core: CoreMaker) -> None:
    files = {"file:1/model.py": b"", "file:1/" + "x" * 300: b""}
    with pytest.raises(InternalError, match="has a part of more than 255 bytes"):
        new_core().load("m", config='{"backend": "python"}', files=files)


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
