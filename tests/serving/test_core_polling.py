"""Repositories that are polled."""

from pathlib import Path
from typing import Any

import pytest

from repoagent.errors import (
    UnavailableError,
)
from repoagent.serving.core_options import ControlMode
from tests.serving.core_kit import CoreMaker, ModelWriter, RequestMaker, first


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


def test_polling_tries_a_failed_model_again_at_once_when_its_files_change(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any
) -> None:
    write_model("m", {1: "fail no"})
    core = new_core(control_mode=ControlMode.POLL, poll_seconds=3600, exit_on_error=False)
    write_model("m", {1: "1"})
    core.poll()
    assert core.model_ready("m")


def test_polling_unloads_nothing_while_a_repository_cannot_be_listed(
    new_core: CoreMaker, write_model: ModelWriter, repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model("m", {1: "1"})
    core = new_core(control_mode=ControlMode.POLL, poll_seconds=3600)
    repository.rename(repository.with_name("elsewhere"))
    core.poll()
    core.poll()
    assert core.model_ready("m")
    assert [r.levelname for r in caplog.records if "polling leaves models as they are" in r.message] == ["WARNING"]


def test_the_poll_thread_polls(new_core: CoreMaker, write_model: ModelWriter, scripted: Any) -> None:
    core = new_core(control_mode=ControlMode.POLL, poll_seconds=0.01)
    write_model("late", {1: "1"})
    assert scripted.loading.acquire(timeout=60)
    core.stop()
