"""The chain against the traces of a stock Triton, and its promises under every failure there can be."""

import contextlib
import itertools
import logging
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repoagent.api import Action, AgentModel
from repoagent.errors import AgentRefusedError, InvalidTransitionError, RepoAgentError
from tests.loader.traces import CASES, drive, events_of

DIFFERENCES = Path(__file__).parents[2] / "docs" / "differences.md"
ACTIONS = [action.name for action in Action]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_agents_are_called_as_in_a_stock_server_but_for_the_listed_differences(
    bench: Any, case: dict[str, Any]
) -> None:
    bench.agents.raise_at(*case.get("fails", []))
    drive(bench, case["agents"], case["steps"], lambda mark: setattr(bench.agents, "mark", mark))
    assert bench.agents.events == events_of(case.get("ours", case["stock"]))
    assert bench.left_over() == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_trace_that_differs_names_reasons_that_the_documentation_has(case: dict[str, Any]) -> None:
    documented = {int(number) for number in re.findall(r"^(\d+)\. ", DIFFERENCES.read_text(), re.MULTILINE)}
    assert bool(case.get("differences")) == ("ours" in case)
    assert set(case.get("differences", [])) <= documented


def promises(events: list[str], left_over: list[str]) -> None:
    """Every promise that can be seen in what one or more finished loads did to their agents."""
    counts = Counter(events)
    for event, count in counts.items():
        agent, _, call = event.partition(" ")
        mark = "'" * call.count("'")
        match call.rstrip("'"):
            case "LOAD":
                assert counts[f"{agent} LOAD_COMPLETE{mark}"] + counts[f"{agent} LOAD_FAIL{mark}"] == count
            case "LOAD_COMPLETE":
                assert counts[f"{agent} UNLOAD{mark}"] == counts[f"{agent} UNLOAD_COMPLETE{mark}"] == count
            case "MInit":
                assert counts[f"{agent} MFini{mark}"] == count
            case "Init":
                assert counts[f"{agent} Fini"] == count
    for event in counts:
        agent, _, call = event.partition(" ")
        if call.rstrip("'") in {"UNLOAD", "UNLOAD_COMPLETE"}:
            assert counts[f"{agent} LOAD_COMPLETE{chr(39) * call.count(chr(39))}"]
        if call.rstrip("'") == "LOAD_FAIL":
            assert counts[f"{agent} LOAD{chr(39) * call.count(chr(39))}"]
    assert left_over == []


def order_is_kept(events: list[str]) -> None:
    """Every call of one agent in the order of its life, for agents that appear once in a chain."""
    order = ["Init", "MInit", "LOAD", "LOAD_COMPLETE", "LOAD_FAIL", "UNLOAD", "UNLOAD_COMPLETE", "MFini", "Fini"]
    for agent in {event.split()[0] for event in events}:
        calls = [order.index(event.split()[1]) for event in events if event.split()[0] == agent]
        assert calls == sorted(calls)


def acquire(model: AgentModel, action: Action) -> None:
    if action is Action.LOAD:
        (model.acquire_location() / "1").mkdir(exist_ok=True)
        model.update_location(model.acquire_location())


def end(chain: Any, ending: str) -> None:
    """Take a loaded chain to ``ending``."""
    if ending == "fail":
        chain.fail(RuntimeError("model"))
    elif ending != "shutdown":
        chain.complete()
    if ending in {"unload", "shutdown while unloading"}:
        chain.unload()
    if ending == "unload":
        chain.unload_complete()


CALLS = ["Init", "MInit", *ACTIONS, "MFini", "Fini"]
RAISED = [ValueError("no"), KeyboardInterrupt(), SystemExit(1), RuntimeError(), GeneratorExit()]
POSITIONS = [(size, at) for size in (1, 2, 3) for at in range(size)]


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["unload", "fail"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("size", "at"), POSITIONS)
def test_an_agent_that_raises_at_any_call_breaks_no_promise(
    bench: Any, size: int, at: int, call: str, ending: str
) -> None:
    names = ["a", "b", "c"][:size]
    failing = f"{names[at]} {call}"
    bench.agents.fails[failing] = RAISED[(size + at + len(call)) % len(RAISED)]
    bench.agents.does = dict.fromkeys(names, acquire)
    refused = call in {"Init", "MInit", "LOAD"}
    ran = names[: at + 1] if refused else names
    if refused:
        with pytest.raises(AgentRefusedError) as caught:
            bench.load(*names)
        assert caught.value.agent == names[at]
        assert caught.value.report.outcome == "failed"
        assert [entry.agent for entry in caught.value.report.entries] == ran
    else:
        chain = bench.load(*names)
        end(chain, ending)
        failed = [action.outcome for action in chain.report.entries[at].actions if action.outcome == "failed"]
        assert failed == (["failed"] if failing in bench.agents.events else [])
    assert {event.split()[0] for event in bench.agents.events} == set(ran)
    promises(bench.agents.events, bench.left_over())
    order_is_kept(bench.agents.events)
    assert bench.loader.agents_in_use() == {}


NAMES = ["a", "b", "c", "d"]


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(st.sampled_from(NAMES), max_size=5),
    fails=st.sets(st.sampled_from([f"{name} {call}" for name, call in itertools.product(NAMES, CALLS)]), max_size=6),
    unknown=st.sets(st.sampled_from(NAMES), max_size=1),
    ending=st.sampled_from(["complete", "fail", "unload", "shutdown", "shutdown while unloading"]),
    moving=st.sets(st.sampled_from(NAMES)),
    guards=st.sets(st.sampled_from(NAMES), max_size=2),
)
def test_every_promise_holds_under_any_plan_of_failures(
    make_bench: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
    names: list[str],
    fails: set[str],
    unknown: set[str],
    ending: str,
    moving: set[str],
    guards: set[str],
) -> None:
    bench = make_bench(tmp_path_factory.mktemp("promises"))
    agents = bench.agents
    agents.events.clear()
    agents.fails.clear()
    agents.raise_at(*fails)
    agents.unknown, agents.guards, agents.does = unknown, guards, dict.fromkeys(moving, acquire)
    with contextlib.suppress(RepoAgentError):
        end(bench.load(*names), ending)
    bench.loader.close()
    promises(agents.events, bench.left_over())
    assert bench.loader.agents_in_use() == {}


def test_each_walk_may_be_asked_for_again_and_does_nothing_then(bench: Any) -> None:
    chain = bench.load("a")
    for walk in (chain.complete, chain.unload, chain.unload_complete):
        walk()
        before = list(bench.agents.events)
        walk()
        assert bench.agents.events == before


@pytest.mark.parametrize(
    ("done", "wrong", "text"),
    [
        ([], "unload", "from LOAD to UNLOAD"),
        ([], "unload_complete", "from LOAD to UNLOAD_COMPLETE"),
        (["complete"], "unload_complete", "from LOAD_COMPLETE to UNLOAD_COMPLETE"),
        (["complete"], "fail", "from LOAD_COMPLETE to LOAD_FAIL"),
        (["complete", "unload"], "complete", "from UNLOAD to LOAD_COMPLETE"),
        (["fail"], "complete", "from LOAD_FAIL to LOAD_COMPLETE"),
        (["fail"], "unload", "from LOAD_FAIL to UNLOAD"),
        (["complete", "unload", "unload_complete"], "unload", "from UNLOAD_COMPLETE to UNLOAD"),
    ],
)
def test_a_walk_out_of_order_is_an_error_that_names_both_states_and_calls_nobody(
    bench: Any, done: list[str], wrong: str, text: str
) -> None:
    chain = bench.load("a")

    def call(name: str) -> None:
        if name == "fail":
            chain.fail(RuntimeError("model"))
        else:
            getattr(chain, name)()

    for name in done:
        call(name)
    before = list(bench.agents.events)
    with pytest.raises(InvalidTransitionError, match=f"model 'm': unexpected lifecycle state transition {text}$"):
        call(wrong)
    assert bench.agents.events == before


def test_the_agent_that_follows_sees_the_place_that_the_one_before_made(bench: Any) -> None:
    seen: list[tuple[str, str, str]] = []

    def look(name: str) -> Callable[[AgentModel, Action], None]:
        def act(model: AgentModel, action: Action) -> None:
            before = model.location
            if name == "a":
                acquire(model, action)
            seen.append((name, action.name, "moved" if before != source.location else "source"))

        return act

    source = bench.model("z", "a", "b")
    bench.agents.does = {name: look(name) for name in "zab"}
    chain = bench.loader.load(source)
    assert chain.location != source.location
    chain.complete()
    chain.unload()
    chain.unload_complete()
    assert seen == [
        ("z", "LOAD", "source"),
        ("a", "LOAD", "source"),
        ("b", "LOAD", "moved"),
        ("b", "LOAD_COMPLETE", "moved"),
        ("a", "LOAD_COMPLETE", "moved"),
        ("z", "LOAD_COMPLETE", "source"),
        ("z", "UNLOAD", "source"),
        ("a", "UNLOAD", "moved"),
        ("b", "UNLOAD", "moved"),
        ("b", "UNLOAD_COMPLETE", "moved"),
        ("a", "UNLOAD_COMPLETE", "moved"),
        ("z", "UNLOAD_COMPLETE", "source"),
    ]
    assert not Path(chain.location).exists()


def test_directories_stay_until_the_last_model_finalize(bench: Any) -> None:
    places: list[Path] = []

    def act(model: AgentModel, action: Action) -> None:
        if action is Action.LOAD:
            places.append(model.acquire_location())

    bench.agents.does = {"a": act}
    chain = bench.load("a", "b")
    (place,) = places
    chain.complete()
    chain.unload()
    assert place.is_dir()
    chain.unload_complete()
    assert not place.exists()


def test_an_agent_that_raises_is_logged_once_with_its_traceback_and_without_parameters(
    bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench.agents.raise_at("a LOAD_COMPLETE")
    with caplog.at_level(logging.DEBUG):
        chain = bench.load("a")
        chain.complete()
    errors = [record for record in caplog.records if record.levelno >= logging.WARNING]
    expected = "agent 'a' raised in LOAD_COMPLETE of model 'm': a LOAD_COMPLETE fails"
    assert [record.getMessage() for record in errors] == [expected]
    assert errors[0].name == "repoagent.loader"
    assert errors[0].exc_info is not None
    assert chain.report.outcome == "loaded"


def test_the_refusal_that_a_client_reads_has_the_text_of_the_exception_only(bench: Any) -> None:
    bench.agents.fails["a LOAD"] = ValueError("Mismatched MD5 hash for file 1/model.py")
    with pytest.raises(AgentRefusedError) as caught:
        bench.load("a")
    assert str(caught.value) == "agent 'a': Mismatched MD5 hash for file 1/model.py"
    assert caught.value.__cause__ is bench.agents.fails["a LOAD"]


def test_an_exception_without_text_is_told_by_its_class(bench: Any) -> None:
    bench.agents.fails["a LOAD"] = ZeroDivisionError()
    with pytest.raises(AgentRefusedError, match=r"^agent 'a': ZeroDivisionError$"):
        bench.load("a")
