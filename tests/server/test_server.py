import logging
import shutil
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repoagent.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    RepoAgentError,
    UnavailableError,
    UnsupportedError,
)
from repoagent.server import (
    InstanceGroupKind,
    ModelControlMode,
    ModelLoadDeviceLimit,
    Options,
    Progress,
    Server,
)
from tests.waiting import until

MakeServer = Callable[..., Server]
EXPLICIT = ModelControlMode.EXPLICIT


def test_a_server_is_started_and_stopped_and_started_again(make_server: MakeServer) -> None:
    server = make_server(model_control_mode=EXPLICIT)
    assert server.start(wait_until_ready=True) is server
    assert server.live()
    assert server.ready()
    with pytest.raises(InvalidArgumentError, match="Server already started"):
        server.start()
    server.stop()
    with pytest.raises(InvalidArgumentError, match="Server not started"):
        server.stop()
    server.start()
    assert server.live()


def test_a_with_block_starts_and_stops(make_server: MakeServer) -> None:
    with make_server(model_control_mode=EXPLICIT) as server:
        assert server.live()
        assert server._ptr() > 0
    with pytest.raises(InvalidArgumentError):
        server.live()


def test_a_with_block_takes_a_server_that_runs(make_server: MakeServer) -> None:
    server = make_server(model_control_mode=EXPLICIT).start()
    with server as same:
        assert same is server
        server.stop()


@pytest.mark.parametrize(
    "call",
    [
        lambda server: server.live(),
        lambda server: server.ready(),
        lambda server: server.metadata(),
        lambda server: server.metrics(),
        lambda server: server.model("addsub"),
        lambda server: server.models(),
        lambda server: server.load("addsub"),
        lambda server: server.unload("addsub"),
        lambda server: server.register_model_repository("/x"),
        lambda server: server.unregister_model_repository("/x"),
        lambda server: server.poll_model_repository(),
        lambda server: server._ptr(),
    ],
)
def test_nothing_works_before_the_start(make_server: MakeServer, call: Callable[[Server], Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="Server not started"):
        call(make_server())


def test_a_repository_must_be_named(make_server: MakeServer) -> None:
    empty: tuple[Any, ...] = ([], None, "")
    for nothing in empty:
        with pytest.raises(InvalidArgumentError, match="Model repository must be specified"):
            make_server(model_repository=nothing).start()


def test_a_repository_that_does_not_exist_is_an_internal_error(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server(model_repository=str(tmp_path / "none"))
    with pytest.raises(InternalError, match="none"):
        server.start()
    with pytest.raises(InvalidArgumentError, match="Server not started"):
        server.live()


def test_options_come_as_an_object_or_as_keywords(repository: Path) -> None:
    assert Server(Options(str(repository), "me")).options.server_id == "me"
    assert Server(Options(str(repository), "me"), server_id="other").options.server_id == "other"
    with pytest.raises(TypeError, match="no_such_option"):
        Server(no_such_option=1)


@pytest.mark.parametrize(
    "fields",
    [
        {"server_id": 1},
        {"exit_timeout": "30"},
        {"log_info": 1},
        {"model_control_mode": 2},
        {"log_file": 3},
        {"model_repository": ["models", 5]},
        {"startup_models": "addsub"},
        {"memory_budget": "5"},
        {"drain_timeout": "5"},
        {"backend_configuration": {"python": "process"}},
        {"rate_limiter_resources": ["R"]},
        {"storage_options": "secret"},
    ],
)
def test_a_value_of_the_wrong_type_is_a_type_error(make_server: MakeServer, fields: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(fields))):
        make_server(**fields).start()


def test_a_wrong_type_is_told_before_a_missing_repository() -> None:
    with pytest.raises(TypeError, match="server_id"):
        Server(server_id=1).start()
    with pytest.raises(TypeError, match="model_repository"):
        Server(model_repository=1).start()


def test_a_repository_in_the_place_of_options_is_told() -> None:
    with pytest.raises(TypeError, match=r"takes Options or keyword arguments, not str: Server\(model_repository="):
        Server("models")  # type: ignore[arg-type]


def test_a_type_error_names_the_type_that_was_expected(make_server: MakeServer) -> None:
    with pytest.raises(TypeError, match=r"Options\.startup_models must be list\[str\], not str: 'addsub'"):
        make_server(startup_models="addsub").start()
    with pytest.raises(TypeError, match=r"Options\.storage_options must be Mapping\[str, object\] \| None, not str"):
        make_server(storage_options=("key", "secret")[1]).start()


@pytest.mark.parametrize("fields", [{"exit_timeout": -1}, {"poll_interval": 0}, {"memory_budget": -1}])
def test_a_number_that_means_nothing_is_refused(make_server: MakeServer, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"Options\.{next(iter(fields))} must be"):
        make_server(**fields).start()


def test_a_log_file_that_cannot_be_opened_is_named(make_server: MakeServer, tmp_path: Path) -> None:
    path = tmp_path / "none" / "log"
    with pytest.raises(InvalidArgumentError, match=f"cannot open the log file '{path}': No such file or directory"):
        make_server(log_file=str(path)).start()


def test_of_two_starts_at_once_one_is_refused(make_server: MakeServer) -> None:
    server = make_server()
    refusals = []

    def start() -> None:
        try:
            server.start()
        except InvalidArgumentError as error:
            refusals.append(str(error))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refusals == 7 * ["Server already started"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_load_device_limits": [ModelLoadDeviceLimit(InstanceGroupKind.CPU, 0, 0.5)]}, "not supported"),
        ({"host_policies": {"p": {"colour": "red"}}}, "Unsupported host policy setting 'colour'"),
    ],
)
def test_what_the_server_cannot_do_is_refused_by_name(
    make_server: MakeServer, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        make_server(**fields).start()


def test_a_server_that_is_not_ready_in_time_says_so(make_server: MakeServer, repository: Path) -> None:
    (repository / "addsub" / "1" / "model.onnx").write_bytes(b"no model")
    server = make_server(model_control_mode=EXPLICIT, startup_models=["addsub"], exit_on_error=False)
    with pytest.raises(UnavailableError, match="Timeout before ready"):
        server.start(wait_until_ready=True, polling_interval=0.001, timeout=0.01)
    assert server.live()


def test_a_model_that_fails_ends_the_start(make_server: MakeServer, repository: Path) -> None:
    (repository / "addsub" / "1" / "model.onnx").write_bytes(b"no model")
    with pytest.raises(InternalError, match="addsub"):
        make_server().start()


def test_metadata_has_the_name_of_the_server(make_server: MakeServer) -> None:
    with make_server(model_control_mode=EXPLICIT, server_id="me") as server:
        assert server.metadata()["name"] == "me"


def test_models_are_found_by_name_and_version(server: Server) -> None:
    models = server.models()
    assert models["addsub", 1].state == "READY"
    assert models["addsub"].version == -1
    assert {name for name, _ in models} == {"addsub", "broken", "half", "repeat", "slow", "text"}
    for unknown in ("none", ("addsub", 7)):
        with pytest.raises(KeyError, match="Unknown Model: "):
            models[unknown]


def test_models_that_are_not_ready_can_be_left_out(make_server: MakeServer) -> None:
    server = make_server(model_control_mode=EXPLICIT, startup_models=["addsub"]).start()
    assert list(server.models(exclude_not_ready=True)) == [("addsub", 1)]
    assert ("text", -1) in server.models()
    assert str(server.models()["addsub", 1]) == "{'name': 'addsub', 'version': 1, 'state': 'READY'}"


def test_a_model_is_loaded_and_unloaded(make_server: MakeServer) -> None:
    server = make_server(model_control_mode=EXPLICIT).start()
    assert not server.model("addsub").ready()
    model = server.load("addsub")
    assert model.ready()
    server.unload(model, wait_until_unloaded=True, polling_interval=0.001, timeout=60)
    assert not model.ready()
    assert server.models()["addsub", 1].state == "UNAVAILABLE"
    server.load("addsub")
    server.unload("addsub")
    assert not model.ready()


def test_waiting_for_an_unload_ends_at_the_timeout(make_server: MakeServer, scripted: Any) -> None:
    server = make_server(model_control_mode=EXPLICIT, startup_models=["slow"]).start()
    responses = server.model("slow").infer(inputs={"INPUT": np.array([1], np.int32)})
    assert scripted.started.wait(60)
    server.unload("slow", wait_until_unloaded=True, polling_interval=0.001, timeout=0.01)
    assert server.models()["slow", 1].state == "UNLOADING"
    scripted.go.set()
    assert next(responses).final
    until(lambda: server.models()["slow", 1].state == "UNAVAILABLE")


def test_waiting_for_an_unload_looks_at_every_namesake(
    make_server: MakeServer, repository: Path, tmp_path: Path, scripted: Any
) -> None:
    shutil.copytree(repository, tmp_path / "others")
    repositories = [str(repository), str(tmp_path / "others")]
    server = make_server(
        model_repository=repositories, model_control_mode=EXPLICIT, model_namespacing=True, startup_models=["slow"]
    ).start()
    responses = server.model(f"{repository}::slow").infer(inputs={"INPUT": np.array([1], np.int32)})
    assert scripted.started.wait(60)
    server.unload("slow", wait_until_unloaded=True, polling_interval=0.001, timeout=0.01)
    assert not server._unloaded("slow")
    scripted.go.set()
    assert next(responses).final
    server.unload("slow", wait_until_unloaded=True, polling_interval=0.001, timeout=60)
    assert server._unloaded("slow")


def test_a_model_is_loaded_from_the_bytes_of_its_files(make_server: MakeServer, add_sub_model: bytes) -> None:
    server = make_server(model_control_mode=EXPLICIT).start()
    model = server.load("new", {"config": '{"backend": "onnxruntime"}', "file:3/model.onnx": add_sub_model})
    assert model.ready()
    assert list(server.models(exclude_not_ready=True)) == [("new", 3)]


@pytest.mark.parametrize("parameters", [{"colour": "red"}, {"file:1/model.onnx": "text"}, {"config": 1}])
def test_a_load_parameter_that_means_nothing_is_refused(make_server: MakeServer, parameters: dict[str, Any]) -> None:
    server = make_server(model_control_mode=EXPLICIT).start()
    with pytest.raises(InvalidArgumentError, match=f"Unrecognized load parameter '{next(iter(parameters))}'"):
        server.load("addsub", parameters)


def test_models_come_and_go_on_demand_in_explicit_mode_only(make_server: MakeServer, repository: Path) -> None:
    server = make_server(exit_on_error=False).start()
    for call in (lambda: server.load("addsub"), lambda: server.unload("addsub")):
        with pytest.raises(UnavailableError, match="explicit model load / unload is not allowed"):
            call()
    with pytest.raises(UnsupportedError, match="repository registration is not allowed if model control mode is not"):
        server.register_model_repository(str(repository))
    with pytest.raises(UnsupportedError, match="repository unregistration is not allowed"):
        server.unregister_model_repository(str(repository))
    with pytest.raises(UnavailableError, match="polling is disabled"):
        server.poll_model_repository()


def test_polling_follows_the_repository(make_server: MakeServer, repository: Path) -> None:
    server = make_server(model_control_mode=ModelControlMode.POLL, poll_interval=3600).start()
    (repository / "addsub").rename(repository / "later")
    server.poll_model_repository()
    assert server.model("later").ready()
    assert not server.model("addsub").ready()


def test_a_repository_is_registered_and_unregistered(make_server: MakeServer, tmp_path: Path, repository: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (repository / "text").rename(other / "words")
    (repository / "half").rename(other / "more")
    server = make_server(model_control_mode=EXPLICIT).start()
    with pytest.raises(InternalError):
        server.load("words")

    server.register_model_repository(str(other), {"words": "phrases"})
    assert server.load("phrases").ready()
    assert server.load("more").ready()
    with pytest.raises(InternalError):
        server.load("words")
    with pytest.raises(AlreadyExistsError, match="has already been registered"):
        server.register_model_repository(str(other))

    server.unregister_model_repository(str(other))
    assert server.model("phrases").ready()
    server.unload("phrases")
    with pytest.raises(InternalError):
        server.load("phrases")
    with pytest.raises(InvalidArgumentError, match=r"failed to unregister .*, repository not found"):
        server.unregister_model_repository(str(other))


def test_a_mapping_gives_a_name_once(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server(model_control_mode=EXPLICIT).start()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with pytest.raises(InvalidArgumentError, match="there is a conflicting mapping for 'm'"):
        server.register_model_repository(str(tmp_path / "one"), {"a": "m", "b": "m"})
    server.register_model_repository(str(tmp_path / "one"), {"a": "m"})
    with pytest.raises(AlreadyExistsError, match="failed to register 'm', there is a conflicting mapping for 'm'"):
        server.register_model_repository(str(tmp_path / "two"), {"c": "m"})
    with pytest.raises(InvalidArgumentError, match=r"failed to register '.*nowhere', repository not found"):
        server.register_model_repository(str(tmp_path / "nowhere"))


def test_metrics_have_tritons_names(server: Server, addsub_inputs: dict[str, Any]) -> None:
    next(server.model("addsub").infer(inputs=addsub_inputs))
    text = server.metrics()
    assert 'nv_inference_request_success{model="addsub",version="1"} 1\n' in text
    assert "nv_cpu_memory_used_bytes " in text


def test_metrics_can_be_switched_off(make_server: MakeServer) -> None:
    with make_server(model_control_mode=EXPLICIT, metrics=False) as server:
        # A model of another server in this process may have metrics of its own, which all of them show.
        assert "nv_inference_request_success" not in server.metrics()


def test_a_lease_gives_a_loaded_model(make_server: MakeServer) -> None:
    server = make_server(model_control_mode=EXPLICIT).start()
    with server.lease("addsub") as model:
        assert model.ready()


async def test_a_model_is_loaded_by_its_first_request(make_server: MakeServer, addsub_inputs: dict[str, Any]) -> None:
    server = make_server(model_control_mode=EXPLICIT, on_demand=True, memory_budget=1 << 20).start()
    assert not server.model("addsub").ready()
    (response,) = [it async for it in server.model("addsub").async_infer(inputs=addsub_inputs)]
    assert response.error is None
    server.unload("addsub")
    (response,) = server.model("addsub").infer(inputs=addsub_inputs)
    assert response.error is None


def test_metrics_tell_what_agents_do(make_server: MakeServer) -> None:
    server = make_server(model_control_mode=EXPLICIT).start()
    server.load("addsub")
    until(lambda: 'repoagent_loads_total{model="addsub"} 1\n' in server.metrics())


def test_namesakes_in_several_repositories_are_told_apart(
    make_server: MakeServer, repository: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(repository / "addsub", other / "addsub")
    server = make_server(
        model_repository=[str(repository), str(other)],
        model_namespacing=True,
        model_control_mode=EXPLICIT,
        startup_models=["addsub", "text"],
    ).start()
    found = [name for name, _ in server.models(exclude_not_ready=True)]
    assert sorted(found) == sorted([f"{repository}::addsub", f"{other}::addsub", "text"])
    model = server.models()[f"{other}::addsub"]
    assert model.ready()
    assert model.metadata()["name"] == "addsub"
    with pytest.raises(InvalidArgumentError, match="model namespace must be provided to resolve ambiguity"):
        server.model("addsub").metadata()


@pytest.fixture
def failing(tmp_path: Path) -> Path:
    """A repository of models that fail in different places."""
    refused = 'model_repository_agents { agents [ { name: "checksum" parameters { key: "SHA256:1/x" value: "00" } } ] }'
    keyless = """model_repository_agents { agents [
        { name: "decrypt" parameters { key: "identity" value: "env:NO_SUCH_VARIABLE" } } ] }"""
    for name, config in {
        "refused": refused,
        "keyless": keyless,
        "unreadable": "max_batch_size: many",
        "agentless": 'model_repository_agents { agents [ { name: "nosuch" } ] }',
        "backendless": 'backend: "nosuch"',
        "broken": 'backend: "onnxruntime"',
    }.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "x").write_text("x")
        (tmp_path / name / "1" / "model.onnx").write_bytes(b"not a model")
        (tmp_path / name / "config.pbtxt").write_text(config)
    return tmp_path


@pytest.mark.parametrize("name", ["refused", "keyless", "unreadable", "agentless", "backendless", "broken", "missing"])
def test_a_load_that_fails_is_one_line_at_error_with_the_whole_reason(
    failing: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """U9: it was four or five."""
    with (
        Server(model_repository=failing, model_control_mode=EXPLICIT) as server,
        pytest.raises(RepoAgentError) as error,
    ):
        server.load(name)
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == [str(error.value).rstrip()]


@pytest.mark.parametrize(("name", "kind"), [("missing", NotFoundError), ("keyless", NotFoundError), ("refused", None)])
def test_an_error_of_a_load_has_its_kind_and_no_frames_of_the_server(
    failing: Path, name: str, kind: type[Exception] | None
) -> None:
    """U10: a key that is missing was an internal error with a hundred lines."""
    with Server(model_repository=failing, model_control_mode=EXPLICIT) as server:
        with pytest.raises(InternalError) as caught:
            server.load(name)
        assert isinstance(caught.value, NotFoundError) is (kind is not None)
        assert len(traceback.format_exception(caught.value)) == 4, "the head, this test, Server.load, the text"
        with pytest.raises(NotFoundError) as unknown:
            server.model("missing").run({})
    assert len(traceback.format_exception(unknown.value)) == 4


def test_a_notebook_shows_states_reasons_and_the_agents_of_a_load(failing: Path, make_server: MakeServer) -> None:
    """U10: they had bare reprs, and there was no progress."""
    seen: list[Progress] = []
    server = make_server(
        model_repository=[failing, make_server().options.model_repository],
        model_control_mode=EXPLICIT,
        progress_callback=seen.append,
    )
    assert repr(server) == "<Server, not started>"
    with server:
        assert repr(server.load("addsub")) == "<Model 'addsub', READY>"
        with pytest.raises(InternalError):
            server.load("refused")
        assert repr(server.model("refused")) == "<Model 'refused', not ready>"
        assert repr(server).endswith(f"1 of {len(server.models())} models ready>")
        assert '<td style="text-align:left">refused</td>' in server._repr_html_()
        assert "Mismatched SHA256" in server._repr_html_()
        report = server.model("refused").report()
        assert report.outcome == "failed"
        assert "background:#c0392b" in report._repr_html_()
        with pytest.raises(NotFoundError, match="'broken' was never loaded"):
            server.model("broken").report()
        with pytest.raises(InvalidArgumentError, match="unexpected inference input 'wrong'") as wrong:
            server.model("addsub").run(dict.fromkeys(("INPUT0", "wrong"), np.zeros((1, 4), np.float32)))
        assert wrong.value.__notes__ == ["its inputs are 'INPUT0', 'INPUT1'"]
    assert {progress.agent for progress in seen} == {"checksum"}
    assert "not started" in repr(server)
