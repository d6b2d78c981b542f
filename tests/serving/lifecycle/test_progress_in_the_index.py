"""While a model is being loaded the index shows how far its agents are."""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from repoagent.serving.core import ControlMode, CoreOptions, ServingCore

AGENT = """
from repoagent.api import Agent
import slow_work

class Slow(Agent):
    api_version = 1

    def load(self, model):
        model.progress(45, 180, "building the plan")
        slow_work.begun.set()
        assert slow_work.go_on.wait(60)
"""


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("slow_work")
    vars(module).update(begun=threading.Event(), go_on=threading.Event())
    monkeypatch.setitem(sys.modules, "slow_work", module)
    return module


@pytest.fixture
def core(tmp_path: Path, add_constant: Callable[[float], bytes], work: ModuleType) -> Iterator[ServingCore]:
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "models" / "m" / "1" / "model.onnx").write_bytes(add_constant(1))
    (tmp_path / "models" / "m" / "config.pbtxt").write_text('model_repository_agents { agents [ { name: "slow" } ] }')
    (tmp_path / "agents" / "slow").mkdir(parents=True)
    (tmp_path / "agents" / "slow" / "agent.py").write_text(AGENT)
    options = CoreOptions(
        repositories=(str(tmp_path / "models"),),
        control_mode=ControlMode.EXPLICIT,
        repoagent_directory=tmp_path / "agents",
        workspace_directory=tmp_path / "workspace",
        cache_directory=tmp_path / "cache",
    )
    core = ServingCore(options)
    core.start()
    yield core
    work.go_on.set()
    core.stop()


def test_the_reason_of_a_model_that_is_loading_is_how_far_its_agents_are(core: ServingCore, work: ModuleType) -> None:
    loading = threading.Thread(target=core.load, args=("m",))
    loading.start()
    assert work.begun.wait(60)
    (entry,) = core.index()
    assert (entry["state"], entry["reason"]) == ("LOADING", "agent 'slow': building the plan, 25%")
    work.go_on.set()
    loading.join()
    (entry,) = core.index()
    assert (entry["state"], entry.get("reason", "")) == ("READY", "")
