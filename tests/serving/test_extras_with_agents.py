"""Ensembles, models in memory and repositories with name mappings over the real loader: nothing here is a stand-in."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest

from repoagent.errors import InvalidArgumentError
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.requests.request import InferRequest
from tests.serving.core_kit import first

AGENT = """
from repoagent.api import Agent

class GateAgent(Agent):
    api_version = 1

    def model_action(self, model, action):
        with open(model.parameters.get("log"), "a") as log:
            log.write(f"{model.name} {action.name}\\n")
        if action.name == model.parameters.get("fail"):
            raise ValueError("told to")
"""


@pytest.fixture
def new_real_core(repository: Path, tmp_path: Path) -> Iterator[Callable[..., ServingCore]]:
    (tmp_path / "agents" / "gate").mkdir(parents=True)
    (tmp_path / "agents" / "gate" / "agent.py").write_text(AGENT)
    cores: list[ServingCore] = []

    def make() -> ServingCore:
        core = ServingCore(
            CoreOptions(
                repositories=(str(repository),),
                control_mode=ControlMode.EXPLICIT,
                repoagent_directory=tmp_path / "agents",
                workspace_directory=tmp_path / "workspace",
                cache_directory=tmp_path / "cache",
            )
        )
        core.start()
        cores.append(core)
        return core

    yield make
    for core in cores:
        core.stop()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def gated(log: Path, fail: str = "") -> str:
    return (
        'model_repository_agents { agents { name: "gate" '
        f'parameters {{ key: "log" value: "{log}" }} parameters {{ key: "fail" value: "{fail}" }} }} }}\n'
    )


CHAIN = (("a", {"x": "x"}, {"y": "t"}), ("b", {"x": "t"}, {"y": "y"}))


def test_every_member_of_an_ensemble_goes_through_its_own_agents(
    new_real_core: Callable[..., ServingCore],
    write_model: Callable[..., Path],
    ensemble_config: Callable[..., str],
    add_constant: Callable[[float], bytes],
    request_of: Callable[..., InferRequest],
    log: Path,
) -> None:
    write_model("a", {1: add_constant(1)}, gated(log))
    write_model("b", {1: add_constant(10)}, gated(log))
    write_model("e", {}, gated(log) + ensemble_config(*CHAIN))
    core = new_real_core()
    core.load("e")
    assert first(core.infer(request_of("e"))) == 12
    core.unload("e", unload_dependents=True)
    lines = log.read_text().splitlines()
    assert lines[0] == "e LOAD"
    assert lines.index("a LOAD_COMPLETE") < lines.index("e LOAD_COMPLETE")
    assert [line for line in lines if line.endswith("UNLOAD")] == ["e UNLOAD", "a UNLOAD", "b UNLOAD"]


def test_a_member_that_its_agents_refuse_fails_the_ensemble_whose_agents_are_told(
    new_real_core: Callable[..., ServingCore],
    write_model: Callable[..., Path],
    ensemble_config: Callable[..., str],
    add_constant: Callable[[float], bytes],
    log: Path,
) -> None:
    write_model("a", {1: add_constant(1)}, "")
    write_model("b", {1: add_constant(10)}, gated(log, fail="LOAD"))
    write_model("e", {}, gated(log) + ensemble_config(*CHAIN))
    core = new_real_core()
    with pytest.raises(InvalidArgumentError) as caught:
        core.load("e")
    assert "Model 'b' loading failed with error: failed to load 'b', failed to poll from model repository: " in str(
        caught.value
    )
    assert "agent 'gate': told to" in str(caught.value)
    assert log.read_text().splitlines() == ["e LOAD", "b LOAD", "b LOAD_FAIL", "e LOAD_FAIL"]


def test_a_model_given_with_the_load_call_brings_its_external_weights_and_nothing_is_written(
    new_real_core: Callable[..., ServingCore],
    add_constant: Callable[[float], bytes],
    request_of: Callable[..., InferRequest],
    tmp_path: Path,
) -> None:
    path = tmp_path / "export" / "model.onnx"
    path.parent.mkdir()
    model = onnx.load_from_string(add_constant(7))
    onnx.save_model(model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    files = {f"1/{file.name}": file.read_bytes() for file in path.parent.iterdir()}
    core = new_real_core()
    core.load("m", config=json.dumps({"backend": "onnxruntime"}), files=files)
    assert first(core.infer(request_of("m"))) == 8
    written = [file for file in (tmp_path / "workspace").rglob("*") if file.is_file() and file.stat().st_size]
    assert [file for file in written if file.suffix in (".onnx", ".bin")] == []


def test_a_mapped_model_is_loaded_under_its_new_name_whatever_its_configuration_says(
    new_real_core: Callable[..., ServingCore],
    add_constant: Callable[[float], bytes],
    request_of: Callable[..., InferRequest],
    tmp_path: Path,
) -> None:
    directory = tmp_path / "other" / "words"
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.onnx").write_bytes(add_constant(1))
    (directory / "config.pbtxt").write_text('name: "words"')
    core = new_real_core()
    core.register_repository(str(tmp_path / "other"), {"words": "phrases"})
    core.load("phrases")
    assert first(core.infer(request_of("phrases"))) == 2
    assert core.model_config("phrases")["name"] == "phrases"
    core.unregister_repository(str(tmp_path / "other"))
    assert first(core.infer(request_of("phrases"))) == 2


def test_agents_find_a_model_of_the_callers_own_files_in_memory(
    new_real_core: Callable[..., ServingCore], add_constant: Callable[[float], bytes], tmp_path: Path, log: Path
) -> None:
    agent = tmp_path / "agents" / "place" / "agent.py"
    agent.parent.mkdir()
    agent.write_text(
        "from pathlib import Path\nfrom repoagent.api import Agent\n\n"
        "class PlaceAgent(Agent):\n"
        "    api_version = 1\n\n"
        "    def load(self, model):\n"
        "        here = model.localize()\n"
        "        found = [model.location, model.artifact_type.name, str((here / '1' / 'model.onnx').is_file())]\n"
        "        Path(model.parameters['log']).write_text(' '.join(found))\n"
    )
    config = {
        "backend": "onnxruntime",
        "model_repository_agents": {"agents": [{"name": "place", "parameters": {"log": str(log)}}]},
    }
    new_real_core().load("m", config=json.dumps(config), files={"1/model.onnx": add_constant(1)})
    assert log.read_text() == "memory://m REMOTE_FILESYSTEM True"
