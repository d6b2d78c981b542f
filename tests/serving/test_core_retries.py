"""Failed loads that are tried again, and what an error of a load has with it."""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError
from repoagent.serving.assembly import ControlMode
from repoagent.serving.lifecycle import repository_follower
from repoagent.serving.lifecycle.repository_follower import RetryPauses
from tests.serving.core_kit import CoreMaker, ModelWriter


def _attempts(loader: Any) -> int:
    return sum(line.endswith(" LOAD") for line in loader.trace)


def test_polling_tries_a_refused_model_again_with_pauses_that_grow(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository_follower, "_LONGEST_SECONDS", 3600.0 * 100)  # in an hour, no poll but these
    write_model("m", {1: "1"})
    loader.refusal = "the key server is down"
    core = new_core(control_mode=ControlMode.POLL, poll_seconds=3600, exit_on_error=False)
    tried = []
    for poll in range(1, 13):
        before = _attempts(loader)
        core.poll()
        tried += [poll] * (_attempts(loader) - before)
    assert tried == [1, 3, 7]
    loader.refusal = None
    while not core.model_ready("m"):
        core.poll()
    loads = _attempts(loader)
    core.poll()
    assert _attempts(loader) == loads


def test_polling_tries_a_refused_reload_again_while_the_old_model_serves(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any
) -> None:
    write_model("m", {1: "1"})
    core = new_core(control_mode=ControlMode.POLL, poll_seconds=3600)
    loader.refusal = "the key server is down"
    write_model("m", {1: "22"})
    core.poll()
    assert core.model_ready("m")
    loader.refusal = None
    core.poll()
    assert loader.trace[-2:] == ["m3 LOAD_COMPLETE", "m1 UNLOAD_COMPLETE"]


def test_the_pauses_end_at_five_minutes() -> None:
    pauses = RetryPauses(60)
    due = [poll for poll in range(40) if pauses.due("m")]
    assert [later - earlier for earlier, later in itertools.pairwise(due)] == [2, 4, 6, 6, 6, 6, 6]
    pauses.forget_others(())
    assert pauses.due("m")


def test_a_failed_model_that_is_gone_from_its_repository_is_forgotten(
    new_core: CoreMaker, write_model: ModelWriter
) -> None:
    directory = write_model("m", {1: "fail no"})
    core = new_core(control_mode=ControlMode.POLL, poll_seconds=3600, exit_on_error=False)
    assert not core.ready()
    shutil.rmtree(directory)
    core.poll()
    assert core.index() == []
    assert core.ready()


@pytest.mark.parametrize("refusal", ["no", None])
def test_the_error_of_a_load_has_its_report(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any, refusal: str | None
) -> None:
    write_model("m", {1: "fail no such luck"})
    core = new_core()
    loader.refusal = refusal
    with pytest.raises(RepoAgentError) as caught:
        core.load("m")
    report = core.report("m")
    assert report is not None
    assert report.outcome == "failed"
    assert caught.value.report == replace(report, size=0)


@pytest.mark.parametrize("config", ["{", '{"max_batch_sise": 1}'])
def test_a_load_with_a_broken_configuration_leaves_a_line_in_the_log(
    new_core: CoreMaker, write_model: ModelWriter, caplog: pytest.LogCaptureFixture, config: str
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    with pytest.raises(InvalidArgumentError) as caught:
        core.load("m", config=config)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [str(caught.value)]


def test_files_without_a_configuration_leave_a_line_in_the_log(
    new_core: CoreMaker, caplog: pytest.LogCaptureFixture
) -> None:
    core = new_core()
    with pytest.raises(InvalidArgumentError, match="requires providing config override"):
        core.load("m", files={"1/model.txt": b"1"})
    assert "requires providing config override" in caplog.text


def test_a_model_in_two_repositories_has_state_and_reason_in_the_index(
    new_core: CoreMaker, write_model: ModelWriter, repository: Path, tmp_path: Path
) -> None:
    write_model("m", {1: "1"})
    other = tmp_path / "other"
    (other / "m" / "1").mkdir(parents=True)
    core = new_core(repositories=(str(repository), str(other)))
    reason = (
        "not unique across all model repositories: it is in the repositories 1 and 2, counted as the server was given "
        "them"
    )
    assert core.index() == [{"name": "m", "state": "UNAVAILABLE", "reason": reason}]
    with pytest.raises(InternalError, match="not unique"):
        core.load("m")
    assert core.index() == [{"name": "m", "state": "UNAVAILABLE", "reason": reason}]


@pytest.mark.parametrize("mode", [ControlMode.EXPLICIT, ControlMode.POLL])
def test_a_loaded_model_that_comes_to_lie_in_two_repositories_serves_on_and_then_has_the_reason(
    new_core: CoreMaker, write_model: ModelWriter, repository: Path, tmp_path: Path, mode: ControlMode
) -> None:
    """L21: the index said only "unloaded"."""
    write_model("m", {1: "1"})
    other = tmp_path / "other"
    other.mkdir()
    core = new_core(repositories=(str(repository), str(other)), control_mode=mode, startup_models=("m",))
    ready = {"name": "m", "version": "1", "state": "READY"}
    (other / "m" / "1").mkdir(parents=True)
    core.poll() if mode is ControlMode.POLL else None
    assert core.index() == [ready]
    if mode is ControlMode.EXPLICIT:
        core.unload("m")
        (entry,) = core.index()
        assert (entry["state"], entry["reason"][:10]) == ("UNAVAILABLE", "not unique")
        shutil.rmtree(other / "m")
        assert [(it["version"], it["reason"]) for it in core.index()] == [("1", "unloaded")]


def test_a_deleted_model_leaves_the_index_with_its_unload(new_core: CoreMaker, write_model: ModelWriter) -> None:
    directory = write_model("m", {1: "1"})
    core = new_core()
    core.load("m")
    shutil.rmtree(directory)
    assert [entry["state"] for entry in core.index()] == ["READY"]
    core.unload("m")
    assert core.index() == []


def test_a_model_of_a_callers_own_files_leaves_the_index_with_its_unload(new_core: CoreMaker) -> None:
    core = new_core()
    core.load("m", config='{"backend": "scripted"}', files={"1/model.txt": b"1"})
    assert [entry["state"] for entry in core.index()] == ["READY"]
    core.unload("m")
    assert core.index() == []
