"""A policy at work in real loads: whatever way a model comes in, it cannot get round it."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from repoagent.api import AgentModel
from repoagent.config import read_text
from repoagent.errors import AgentError, InternalError
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.policy import DemandedAgent, Mode, Policy, PolicyPlanner, Rule
from repoagent.storage.repositories.sources import MemorySource

Guarded = Callable[..., Any]


@pytest.fixture
def guarded(make_bench: Callable[..., Any], known_agents: AgentRegistry) -> Guarded:
    """A loader whose policy puts agent "guard" before every model's own agents."""

    def make(mode: Mode = Mode.ENFORCE, **fields: Any) -> Any:
        rule = Rule(models=("*",), mode=mode, before=(DemandedAgent("guard"),), **fields)
        return make_bench(planner=PolicyPlanner(Policy([rule]), known_agents))

    return make


def test_the_guard_runs_for_a_file_an_override_and_contents_sent_along(guarded: Guarded) -> None:
    bench = guarded(overrides=True)
    without_agents = read_text('name: "m" backend: "python"')
    sent = MemorySource("m", {"config.pbtxt": b'name: "m"', "1/model.txt": b"weights"})
    file = bench.model("a")
    for source, override in ((file, None), (file, without_agents), (sent, None), (sent, without_agents)):
        bench.agents.events.clear()
        bench.loader.load(source, override=override).fail(RuntimeError("enough"))
        assert "guard LOAD" in bench.agents.events


def test_a_refusing_guard_refuses_the_load(guarded: Guarded) -> None:
    bench = guarded()
    bench.agents.raise_at("guard LOAD")
    with pytest.raises(AgentError, match="agent 'guard': guard LOAD fails"):
        bench.load("a")
    assert "a LOAD" not in bench.agents.events


@pytest.mark.parametrize("call", ["guard Init", "guard MInit", "guard LOAD"])
def test_in_mode_warn_a_failing_guard_is_reported_and_the_load_goes_on(
    guarded: Guarded, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = guarded(Mode.WARN)
    bench.agents.raise_at(call)
    with caplog.at_level(logging.WARNING):
        chain = bench.load("a")
        chain.complete()
    assert "its policy only warns" in caplog.text
    assert chain.report.outcome == "loaded"
    assert f"{call} fails" in str(chain.report.to_dict())
    chain.unload()
    chain.unload_complete()
    told = [event for event in bench.agents.events if event.startswith("guard")]
    expected = {
        "guard Init": ["Init", "Fini"],
        "guard MInit": ["Init", "MInit", "MFini", "Fini"],
        "guard LOAD": ["Init", "MInit", "LOAD", "LOAD_FAIL", "MFini", "Fini"],
    }[call]
    assert told == [f"guard {name}" for name in expected]
    assert bench.left_over() == []


def test_a_missing_guard_is_only_reported_in_mode_warn(guarded: Guarded) -> None:
    bench = guarded(Mode.WARN)
    bench.agents.unknown.add("guard")
    assert bench.load("a").report.outcome == "loading"
    strict = guarded()
    strict.agents.unknown.add("guard")
    with pytest.raises(AgentError, match="no such agent"):
        strict.load("a")


def test_a_backend_that_an_agent_switches_to_is_judged_too(guarded: Guarded) -> None:
    bench = guarded(backends=("onnxruntime",))

    switched: list[str] = []

    def switch(model: AgentModel, _: object) -> None:
        if not switched:
            switched.append(model.location)
            place = model.acquire_location()
            config = model.config
            assert config is not None
            config.backend = "python"
            model.write_config(config)
            model.update_location(place)

    bench.agents.does["a"] = switch
    source = bench.model("a", extra='backend: "onnxruntime"')
    with pytest.raises(InternalError, match="does not allow backend 'python'"):
        bench.loader.load(source)
    assert bench.agents.events.count("guard LOAD_FAIL") == 1
    assert bench.left_over() == []


def test_a_model_cannot_see_the_policys_parameters_in_its_configuration(
    make_bench: Callable[..., Any], known_agents: AgentRegistry
) -> None:
    rule = Rule(models=("*",), before=(DemandedAgent("guard", (("level", "operator only"),)),))
    bench = make_bench(planner=PolicyPlanner(Policy([rule]), known_agents))
    seen = []
    bench.agents.does["guard"] = lambda model, _: seen.append(list(model.parameters.items()))
    chain = bench.load("a")
    assert seen == [[("level", "operator only")]]
    assert "operator only" not in str(chain.config)
