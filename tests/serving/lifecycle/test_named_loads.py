"""Ensembles follow the models that they call: changed, gone, and back."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repoagent.errors import NotFoundError, RepoAgentError
from repoagent.serving.core import ControlMode, ServingCore
from repoagent.serving.requests.request import Asked, InferRequest

CoreMaker = Callable[..., ServingCore]
ModelWriter = Callable[..., Path]
Text = Callable[..., str]
RequestMaker = Callable[..., InferRequest]

_SCRIPTED = 'backend: "scripted" {} input {{ name: "{}" data_type: TYPE_FP32 dims: [-1, 4] }} output {{ name: "y" data_type: TYPE_FP32 dims: [-1, 4] }}'  # noqa: E501
_OTHER_INPUT = _SCRIPTED.format("", "z")
_DECOUPLED = _SCRIPTED.format("model_transaction_policy { decoupled: true }", "x")


@pytest.fixture
def pair(write_model: ModelWriter, ensemble_config: Text) -> None:
    """``e`` adds 1 in ``a`` and then 10 in ``b``; ``outer`` is ``e``."""
    write_model("a", {1: "1"})
    write_model("b", {1: "10"})
    write_model("e", {}, ensemble_config(("a", {"x": "x"}, {"y": "t"}), ("b", {"x": "t"}, {"y": "y"})))
    write_model("outer", {}, ensemble_config(("e", {"x": "x"}, {"y": "y"})))


def ready(core: ServingCore) -> list[str]:
    return [entry["name"] for entry in core.index(ready_only=True)]


def reason(core: ServingCore, name: str) -> str:
    (entry,) = [entry for entry in core.index() if entry["name"] == name]
    return entry["reason"]


@pytest.mark.usefixtures("pair")
def test_an_ensemble_is_made_anew_when_a_member_is_reloaded_and_no_agent_is_called_for_it(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any
) -> None:
    core = new_core()
    core.load("outer")

    before = {name: core.find(InferRequest(Asked(name, {}))) for name in ("e", "outer", "b")}
    del loader.trace[:]
    write_model("a", {1: "100"}, _DECOUPLED)
    core.load("a")
    after = {name: core.find(InferRequest(Asked(name, {}))) for name in ("e", "outer", "b")}
    assert after["b"] is before["b"]
    # That the new member may give several answers shows in the ensembles over it, to the outermost.
    assert [before[name].decoupled for name in ("e", "outer")] == [False, False]
    assert [after[name].decoupled for name in ("e", "outer")] == [True, True]
    assert core.model_config("outer")["model_transaction_policy"] == {"decoupled": True}
    assert loader.trace == ["a2 LOAD", "a1 UNLOAD", "a2 LOAD_COMPLETE", "a1 UNLOAD_COMPLETE"]


@pytest.mark.usefixtures("pair")
def test_an_ensemble_that_the_new_member_does_not_fit_is_unloaded_with_the_reason_and_comes_back(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker
) -> None:
    core = new_core()
    core.load("outer")
    write_model("a", {1: "1"}, _OTHER_INPUT)
    core.load("a")
    assert ready(core) == ["a", "b"]
    assert reason(core, "e") == "in ensemble e, ensemble tensor x is mapping to non-existing input x in model a"
    assert "depends on 'e' which has no loaded version" in reason(core, "outer")
    with pytest.raises(NotFoundError, match="'e' has no available versions"):
        core.infer(request_of("e"))
    write_model("a", {1: "1000"})
    core.load("a")
    assert ready(core) == ["a", "b", "e", "outer"]
    assert float(core.infer(request_of("outer")).outputs["y"].array[0, 0]) == 1011


@pytest.mark.usefixtures("pair")
def test_ensembles_come_back_with_a_member_that_had_been_unloaded(
    new_core: CoreMaker, request_of: RequestMaker
) -> None:
    core = new_core()
    core.load("outer")
    core.unload("a")
    assert ready(core) == ["b"]
    core.load("a")
    assert ready(core) == ["a", "b", "e", "outer"]
    assert float(core.infer(request_of("outer")).outputs["y"].array[0, 0]) == 12


@pytest.mark.usefixtures("pair")
def test_they_bring_no_other_member_back_and_wait_for_the_last(new_core: CoreMaker) -> None:
    core = new_core()
    core.load("e")
    core.unload("a")
    core.unload("b")
    core.load("a")
    assert ready(core) == ["a"]
    core.load("b")
    assert ready(core) == ["a", "b", "e"]


@pytest.mark.usefixtures("pair")
def test_an_ensemble_that_was_unloaded_by_name_stays_away(new_core: CoreMaker) -> None:
    core = new_core()
    core.load("e")
    core.unload("a")
    core.unload("e")
    core.load("a")
    assert ready(core) == ["a", "b"]


@pytest.mark.usefixtures("pair")
def test_who_came_back_is_still_known_to_have_been_asked_for(new_core: CoreMaker) -> None:
    core = new_core()
    core.load("e")
    core.load("outer")
    core.unload("a")
    core.load("a")
    core.unload("outer", unload_dependents=True)
    assert ready(core) == ["a", "b", "e"]


@pytest.mark.usefixtures("pair")
def test_a_failed_reload_of_a_member_leaves_its_ensembles_alone(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker
) -> None:
    core = new_core()
    core.load("e")
    served = core.find(request_of("e"))
    write_model("a", {1: "fail no"})
    with pytest.raises(RepoAgentError):
        core.load("a")
    assert core.find(request_of("e")) is served


@pytest.mark.usefixtures("pair")
def test_polling_lets_ensembles_follow(new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker) -> None:
    core = new_core(control_mode=ControlMode.POLL, poll_seconds=3600)
    served = core.find(request_of("e"))
    write_model("a", {1: "100"})
    core.poll()
    assert core.find(request_of("e")) is not served
    assert float(core.infer(request_of("e")).outputs["y"].array[0, 0]) == 111


@pytest.mark.usefixtures("pair")
def test_requests_inside_an_ensemble_are_finished_while_it_follows(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, scripted: Any, new_sender: Any
) -> None:
    core = new_core()
    core.load("e")
    hold = threading.Event()
    (first, _) = sorted(scripted.runners, key=lambda runner: runner.offset)
    first.hold = hold
    sender = new_sender()
    core.submit(request_of("e", sender=sender))
    assert first.running.acquire(timeout=60)
    write_model("b", {1: "20"})
    core.load("b")
    hold.set()
    assert float(sender.final().outputs["y"].array[0, 0]) == 22
