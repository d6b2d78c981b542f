"""Repositories that are polled."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from repoagent.api.hooks import hookimpl
from repoagent.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from repoagent.serving.assembly import ControlMode
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


# Loads with a configuration or files in the request.


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
    assert core.index() == []


@pytest.mark.parametrize(
    ("config", "files", "kind", "text"),
    [
        (None, {"1/model.txt": b"7"}, InvalidArgumentError, "failed to load 'm', .* requires providing config"),
        (
            '{"backend": "scripted"}',
            {"../1/model.txt": b"7"},
            InternalError,
            "failed to load 'm', failed to poll from model repository",
        ),
        ("{nonsense", None, InvalidArgumentError, "failed to load 'm'"),
    ],
    ids=["files without a configuration", "files outside of the model", "a broken configuration"],
)
def test_what_comes_with_a_load_is_refused(
    new_core: CoreMaker, config: str | None, files: dict[str, bytes] | None, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        new_core().load("m", config=config, files=files)


# What the core says of itself and its models, and requests that it turns away.


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


def test_a_model_is_known_that_a_repository_has_or_that_is_loaded(
    new_core: CoreMaker, write_model: ModelWriter, tmp_path: Path
) -> None:
    directory = write_model("m", {1: "1"})
    core = new_core()
    for name in ("", "n", "M", "m/1", "../m", ".", "m\n", "m" * 300, "\ud800"):
        assert not core.has_model(name), name
    assert core.has_model("m")
    core.load("m")
    shutil.rmtree(directory)
    assert core.has_model("m"), "it serves on"
    core.unload("m")
    assert not core.has_model("m")


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
    request.inputs = {}
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
