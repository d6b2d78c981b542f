"""Who is named in the audit log for what a core does by itself, or refuses before anything begins."""

from collections.abc import Mapping
from typing import Any

import pytest

from repoagent.audit import Actor, acting_as, current_actor
from repoagent.errors import RepoAgentError
from repoagent.serving.assembly import ControlMode
from tests.serving.core_kit import CoreMaker, ModelWriter, RequestMaker, first


class Memory:
    """Keeps events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str, str]] = []

    def record(self, event: str, result: str, what: Mapping[str, Any], actor: Actor | None = None) -> None:
        self.events.append((event, result, str(what.get("model", "")), (actor or current_actor()).by))

    demand = note = record


@pytest.fixture
def memory() -> Memory:
    return Memory()


def test_what_is_refused_before_a_load_begins_is_recorded(
    new_core: CoreMaker, write_model: ModelWriter, memory: Memory
) -> None:
    write_model("m", {1: "1"})
    core = new_core(control_mode=ControlMode.EXPLICIT, audit=memory)
    with acting_as(Actor("client", "ann")):
        for name, config in (("missing", None), ("m", "{"), ("../m", "{}")):
            with pytest.raises(RepoAgentError):
                core.load(name, config=config)
    assert memory.events == [
        ("load", "failed", "missing", "client"),
        ("load", "refused", "m", "client"),
        ("load", "refused", "../m", "client"),
    ]


def test_an_unchanged_model_is_recorded_as_such(new_core: CoreMaker, write_model: ModelWriter, memory: Memory) -> None:
    write_model("m", {1: "1"})
    core = new_core(control_mode=ControlMode.EXPLICIT, startup_models=("m",), audit=memory)
    with acting_as(Actor("client")):
        core.load("m")
    assert memory.events == [("load", "unchanged", "m", "client")]


def test_a_wrong_control_mode_is_recorded(new_core: CoreMaker, write_model: ModelWriter, memory: Memory) -> None:
    write_model("m", {1: "1"})
    core = new_core(control_mode=ControlMode.NONE, audit=memory)
    with pytest.raises(RepoAgentError):
        core.unload("m")
    assert memory.events == [("unload", "refused", "m", "operator")]


def test_an_unload_of_one_version_is_recorded_with_its_client(
    new_core: CoreMaker, write_model: ModelWriter, memory: Memory, request_of: RequestMaker
) -> None:
    write_model("m", {1: "1", 2: "2"})
    core = new_core(control_mode=ControlMode.EXPLICIT, startup_models=("m",), audit=memory)
    with acting_as(Actor("client", "ann")):
        core.load("m", version=1)
        core.unload("m", version=2)
    assert first(core.infer(request_of())) == 2
    assert memory.events == [("unload", "started", "m", "client"), ("unload", "unloaded", "m", "client")]


def test_polling_and_requests_are_named(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, loader: Any
) -> None:
    seen: list[str] = []
    load = loader.load

    def noted(*arguments: Any, **more: Any) -> Any:
        seen.append(current_actor().by)
        return load(*arguments, **more)

    loader.load = noted
    write_model("m", {1: "1"})
    core = new_core(control_mode=ControlMode.POLL, poll_seconds=3600)
    write_model("n", {1: "1"})
    core.poll()
    core.stop()
    demand = new_core(control_mode=ControlMode.EXPLICIT, on_demand=True)
    assert first(demand.infer(request_of("m"))) == 2
    assert seen == ["operator", "poll", "on-demand"]
