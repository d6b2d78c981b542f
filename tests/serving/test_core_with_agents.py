"""The core over the real loader, with agents from a directory and ONNX Runtime: nothing here is a stand-in."""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

from repoagent.api.hooks import hookimpl
from repoagent.errors import CancelledError, InternalError, InvalidArgumentError
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.requests.request import InferRequest

TRACE = """
from repoagent.api import Agent

class TraceAgent(Agent):
    api_version = 1

    def model_action(self, model, action):
        with open(model.parameters.get("log"), "a") as log:
            log.write(action.name + "\\n")
        if action.name == model.parameters.get("fail"):
            raise ValueError("told to")
"""

OPTIMISE = '''
import shutil

from repoagent.api import Agent

class RewriteAgent(Agent):
    """Replaces the model by one that adds 100, and says so in its configuration."""
    api_version = 1

    def load(self, model):
        target = model.acquire_location(confidential=True)
        (target / "1").mkdir()
        shutil.copy(model.parameters.get("other"), target / "1" / "model.onnx")
        config = model.config
        config.max_batch_size = 2
        model.write_config(config)
        model.update_location(target)
'''


KEYED = """
from repoagent.api import Agent

class KeyedAgent(Agent):
    api_version = 1

    def load(self, model):
        model.key(model.parameters.get("key"))
"""


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    directory = tmp_path / "agents"
    for name, code in (("trace", TRACE), ("rewrite", OPTIMISE), ("keyed", KEYED)):
        (directory / name).mkdir(parents=True)
        (directory / name / "agent.py").write_text(code)
    return directory


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "trace.log"


@pytest.fixture
def core(repository: Path, agents: Path, tmp_path: Path) -> Iterator[ServingCore]:
    options = CoreOptions(
        repositories=(str(repository),),
        control_mode=ControlMode.EXPLICIT,
        repoagent_directory=agents,
        workspace_directory=tmp_path / "workspace",
        cache_directory=tmp_path / "cache",
        allow_swap=True,
        allow_exec_keys=True,
    )
    with ServingCore(options) as serving:
        yield serving


def traced(log: Path, **parameters: str) -> str:
    pairs = " ".join(
        f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in {"log": str(log), **parameters}.items()
    )
    return f'model_repository_agents {{ agents [ {{ name: "trace" {pairs} }} ] }}'


def test_a_model_goes_through_its_agents_answers_and_goes(
    core: ServingCore,
    write_model: Callable[..., Path],
    add_constant: Callable[[float], bytes],
    log: Path,
    request_of: Callable[..., InferRequest],
) -> None:
    write_model("m", {1: add_constant(1)}, traced(log))
    report = core.load("m")
    assert report.outcome == "loaded"
    assert [entry.agent for entry in report.entries] == ["trace"]
    np.testing.assert_array_equal(core.infer(request_of()).outputs["y"].array, [[2, 3, 4, 5]])
    core.unload("m")
    assert log.read_text().split() == ["LOAD", "LOAD_COMPLETE", "UNLOAD", "UNLOAD_COMPLETE"]


def test_what_the_last_agent_left_behind_is_what_is_served_and_its_plaintext_goes(
    core: ServingCore,
    write_model: Callable[..., Path],
    add_constant: Callable[[float], bytes],
    tmp_path: Path,
    request_of: Callable[..., InferRequest],
) -> None:
    other = tmp_path / "other.onnx"
    other.write_bytes(add_constant(100))
    agent = f'{{ name: "rewrite" parameters {{ key: "other" value: "{other}" }} }}'
    write_model("m", {1: add_constant(1)}, f"model_repository_agents {{ agents [ {agent} ] }}")
    core.load("m")
    assert core.infer(request_of()).outputs["y"].array.tolist() == [[101, 102, 103, 104]]
    assert core.model_config("m")["max_batch_size"] == 2
    slot = core._table.get("m")
    assert slot is not None
    assert slot.loaded is not None
    assert not Path(slot.loaded.chain.location).exists()


def test_an_agent_that_refuses_and_a_model_that_fails_have_tritons_texts(
    core: ServingCore, write_model: Callable[..., Path], add_constant: Callable[[float], bytes], log: Path
) -> None:
    write_model("m", {1: add_constant(1)}, traced(log, fail="LOAD"))
    with pytest.raises(InternalError) as refused:
        core.load("m")
    assert str(refused.value) == "failed to load 'm', failed to poll from model repository: agent 'trace': told to"
    write_model("m", {1: b"no model"}, traced(log))
    with pytest.raises(InvalidArgumentError) as failed:
        core.load("m")
    assert str(failed.value).startswith(
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: onnx runtime error"
    )
    assert log.read_text().split() == ["LOAD", "LOAD_FAIL", "LOAD", "LOAD_FAIL"]


@pytest.mark.parametrize("end", ["unload", "stop"])
def test_the_program_of_a_key_ends_with_its_children_when_its_load_is_cancelled(
    core: ServingCore, write_model: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    caplog.set_level(logging.INFO)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Both hold the pipe open for writing, so its reader sees the end when both are dead.
    program = f"sh -c 'exec 3>{pipe}; sleep 600 & echo x >&3; wait'"
    agent = f'{{ name: "keyed" parameters {{ key: "key" value: "exec:{program}" }} }}'
    write_model("m", {1: "1"}, f"model_repository_agents {{ agents [ {agent} ] }}")
    errors: list[Exception] = []

    def load() -> None:
        with pytest.raises(CancelledError) as caught:
            core.load("m")
        errors.append(caught.value)

    loading = threading.Thread(target=load)
    loading.start()
    with pipe.open("rb") as reader:
        assert reader.read(1) == b"x"
        core.unload("m") if end == "unload" else core.stop()
        assert reader.read() == b"\n"
    loading.join(60)
    reason = "Newer operation has been applied" if end == "unload" else "the server is stopping"
    assert str(errors[0]).startswith(f"load failed for model 'm': {reason}")
    report = core.report("m")
    assert report is not None
    assert "'sh' was killed because the load was cancelled" in str(report.error)
    assert "\n" not in report.summary
    waited = "cancelling these loads, which have to end first: m" in caplog.text
    assert waited is (end == "stop")


def test_a_python_model_loads_beside_and_calls_an_onnx_model(
    core: ServingCore,
    write_model: Callable[..., Path],
    add_constant: Callable[[float], bytes],
    request_of: Callable[..., InferRequest],
) -> None:
    write_model("adder", {1: add_constant(1)}, "")
    directory = write_model(
        "caller",
        {1: ""},
        """
        backend: "python"
        input { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] }
        output { name: "y" data_type: TYPE_FP32 dims: [ -1, 4 ] }
        """,
    )
    (directory / "1" / "model.py").write_text(
        """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            inputs = [pb_utils.get_input_tensor_by_name(request, "x")]
            inner = pb_utils.InferenceRequest(model_name="adder", requested_output_names=["y"], inputs=inputs)
            answers.append(pb_utils.InferenceResponse(output_tensors=inner.exec().output_tensors()))
        return answers
"""
    )
    core.load("adder")
    core.load("caller")
    assert core.infer(request_of("caller")).outputs["y"].array.tolist() == [[2, 3, 4, 5]]


def test_a_model_in_a_remote_repository_is_served(
    agents: Path, tmp_path: Path, add_constant: Callable[[float], bytes], request_of: Callable[..., InferRequest]
) -> None:
    remote = fsspec.filesystem("memory")
    remote.pipe_file("/remote_test_models/m/1/model.onnx", add_constant(5))
    options = CoreOptions(
        repositories=("memory://remote_test_models",),
        repoagent_directory=agents,
        workspace_directory=tmp_path / "workspace",
        cache_directory=tmp_path / "cache",
    )
    with ServingCore(options) as core:
        assert core.infer(request_of()).outputs["y"].array.tolist() == [[6, 7, 8, 9]]
        assert core.index() == [{"name": "m", "version": "1", "state": "READY"}]
    remote.rm("/remote_test_models", recursive=True)


def test_a_policy_wraps_every_load(
    repository: Path,
    agents: Path,
    tmp_path: Path,
    write_model: Callable[..., Path],
    add_constant: Callable[[float], bytes],
    log: Path,
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(
        f"""
        [[rule]]
        models = ["*"]
        mode = "enforce"
        backends = ["onnxruntime"]
        before = [ {{ agent = "trace", parameters = {{ log = "{log}" }} }} ]
        """
    )
    options = CoreOptions(
        repositories=(str(repository),),
        control_mode=ControlMode.EXPLICIT,
        repoagent_directory=agents,
        agent_policy=policy,
        workspace_directory=tmp_path / "workspace",
        cache_directory=tmp_path / "cache",
    )
    write_model("m", {1: add_constant(1)}, "")
    (write_model("p", {1: ""}, "") / "1" / "model.py").write_text("raise SystemExit('must not run')")
    with ServingCore(options) as core:
        assert [entry.agent for entry in core.load("m").entries] == ["trace"]
        with pytest.raises(InvalidArgumentError, match="the policy does not allow backend 'python'"):
            core.load("p")


def test_a_model_goes_when_its_agent_asks_and_the_index_says_why(
    tmp_path: Path, add_constant: Callable[[float], bytes]
) -> None:
    directory = tmp_path / "repository" / "m"
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.onnx").write_bytes(add_constant(1.0))
    (directory / "config.pbtxt").write_text(
        'backend: "onnxruntime" model_repository_agents { agents [{ name: "lease" }] }'
    )
    (tmp_path / "agents" / "lease").mkdir(parents=True)
    (tmp_path / "agents" / "lease" / "agent.py").write_text(
        "from repoagent.api import Agent\n\n"
        "class Lease(Agent):\n"
        "    api_version = 1\n\n"
        "    def load_complete(self, model):\n"
        "        model.request_unload('the licence has ended')\n"
    )
    options = CoreOptions(
        repositories=(str(tmp_path / "repository"),),
        repoagent_directory=tmp_path / "agents",
        workspace_directory=tmp_path / "work",
        control_mode=ControlMode.EXPLICIT,
    )
    gone = threading.Event()

    class Observer:
        @hookimpl
        def unload_finished(self, event: object) -> None:
            gone.set()

    with ServingCore(options) as core:
        core.observe(Observer(), "test")
        core.load("m")
        assert gone.wait(60)
        # The agents hear the end a moment before the index shows it.
        while core.index()[0]["state"] == "UNLOADING":
            threading.Event().wait(0.005)
        (entry,) = core.index()
        assert entry["state"] == "UNAVAILABLE"
        assert entry["reason"].endswith("agent 'lease': the licence has ended")
