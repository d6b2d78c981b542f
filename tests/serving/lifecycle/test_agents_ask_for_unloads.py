"""What an agent asks for is done whenever it asks: while the server starts, in every mode, and after a lease."""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from repoagent.api.hooks import hookimpl
from repoagent.errors import InternalError
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from tests.serving.core_kit import CoreMaker, ModelWriter, in_thread

AGENT = """
from repoagent.api import Agent
import licences

class Licence(Agent):
    api_version = 1

    def load(self, model):
        if model.parameters.get("waits"):
            assert licences.gone.wait(60)
        if model.parameters.get("ends") == "LOAD":
            model.request_unload("it has ended")
            assert licences.cancelled(model)

    def load_complete(self, model):
        if model.parameters.get("ends") == "LOAD_COMPLETE":
            model.request_unload("it has ended")
"""
Serve = Callable[..., ServingCore]


class Observer:
    def __init__(self) -> None:
        self.gone = threading.Event()

    @hookimpl
    def unload_finished(self, event: object) -> None:
        self.gone.set()


@pytest.fixture
def serve(tmp_path: Path, add_constant: Callable[[float], bytes], monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Makes a server of the model ``a``, whose licence ends, and ``b``, whose load waits until ``a`` is gone."""

    def cancelled(model: object) -> bool:
        for _ in range(60_000):
            if model.cancelled:  # type: ignore[attr-defined]
                return True
            threading.Event().wait(0.001)
        return False

    def make(when: str, **options: object) -> ServingCore:
        for name, parameters in {"a": f'key: "ends" value: "{when}"', "b": 'key: "waits" value: "yes"'}.items():
            (tmp_path / "models" / name / "1").mkdir(parents=True)
            (tmp_path / "models" / name / "1" / "model.onnx").write_bytes(add_constant(1.0))
            (tmp_path / "models" / name / "config.pbtxt").write_text(
                'backend: "onnxruntime" model_repository_agents '
                f'{{ agents [{{ name: "licence" parameters [{{ {parameters} }}] }}] }}'
            )
        (tmp_path / "agents" / "licence").mkdir(parents=True)
        (tmp_path / "agents" / "licence" / "agent.py").write_text(AGENT)
        observer, module = Observer(), ModuleType("licences")
        module.gone, module.cancelled = observer.gone, cancelled  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "licences", module)
        core = ServingCore(
            CoreOptions(
                repositories=(str(tmp_path / "models"),),
                repoagent_directory=tmp_path / "agents",
                workspace_directory=tmp_path / "work",
                **options,  # type: ignore[arg-type]
            )
        )
        core.observe(observer, "test")
        return core

    return make


@pytest.mark.parametrize(
    "options",
    [
        {"control_mode": ControlMode.NONE},
        {"control_mode": ControlMode.POLL},
        {"control_mode": ControlMode.EXPLICIT, "startup_models": ("*",)},
    ],
    ids=lambda options: options["control_mode"].value,
)
def test_a_model_whose_agent_asks_while_the_server_starts_does_not_serve(
    serve: Serve, options: dict[str, object]
) -> None:
    with serve("LOAD_COMPLETE", **options) as core:  # It starts, as `a` goes while `b` is still loading.
        (entry,) = [entry for entry in core.index() if entry["name"] == "a"]
        assert entry["state"] in ("UNLOADING", "UNAVAILABLE")
        while entry["state"] == "UNLOADING":  # The agents hear the end a moment before the index shows it.
            (entry,) = [entry for entry in core.index() if entry["name"] == "a"]
        assert entry["reason"] == "unloaded, as its agent asked: agent 'licence': it has ended"
        assert core.model_ready("b")


def test_a_request_during_the_load_ends_that_load_and_the_start_says_why(serve: Serve) -> None:
    core = serve("LOAD", control_mode=ControlMode.EXPLICIT, startup_models=("a",))
    with pytest.raises(InternalError, match="load failed for model 'a': unloaded, as its agent asked: agent 'licence'"):
        core.start()


def until_it_waits(core: ServingCore) -> None:
    slot = core._table.get("m")
    assert slot is not None
    while not slot._released._waiters:  # type: ignore[attr-defined]
        threading.Event().wait(0.001)


def test_a_lease_puts_off_what_an_agent_asks_for_until_it_ends(new_core: CoreMaker, write_model: ModelWriter) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    with core.lease("m"):
        asking, _ = in_thread(lambda: core._unload_for_agent("m", "it has ended"))
        until_it_waits(core)
        assert core.model_ready("m")
    asking.join(60)
    assert not asking.is_alive()
    assert core.index()[0]["reason"] == "unloaded, as its agent asked: it has ended"


def test_what_was_asked_for_during_a_lease_does_not_meet_the_model_that_came_after(
    new_core: CoreMaker, write_model: ModelWriter
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    with core.lease("m"):
        asking, _ = in_thread(lambda: core._unload_for_agent("m", "it has ended"))
        until_it_waits(core)
        write_model("m", {1: "2"})
        core.load("m")  # Its agents have judged it as it is now.
        asking.join(60)
        assert not asking.is_alive()
    assert core.model_ready("m")


# While a model is being loaded the index shows how far its agents are.

REPORTING = """
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
    (tmp_path / "agents" / "slow" / "agent.py").write_text(REPORTING)
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
