"""What the loader records of loads, of keys and of unloads; and what it does not do when it cannot."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from repoagent.api import Action, AgentModel
from repoagent.audit import Actor, Audit, AuditError, acting_as, current_actor
from repoagent.config import ModelConfig, read_text
from repoagent.errors import AgentRefusedError, RepoAgentError
from repoagent.loader.auditing import shown_reference
from repoagent.loader.policy import PolicyPlanner, read_policy
from repoagent.storage.secrets.keys import builtin_providers
from tests.loader.conftest import Agents, MakeBench

SCHEMES = builtin_providers()


@dataclass
class Memory(Audit):
    """An audit that keeps events, and fails for those that ``refuses`` names."""

    events: list[tuple[str, str, Mapping[str, Any], Actor]] = field(default_factory=list)
    refuses: set[tuple[str, str]] = field(default_factory=set)

    def demand(self, event: str, result: str, what: Mapping[str, Any], actor: Actor | None = None) -> None:
        if (event, result) in self.refuses:
            raise AuditError("no room")
        self.record(event, result, what, actor)

    def record(self, event: str, result: str, what: Mapping[str, Any], actor: Actor | None = None) -> None:
        if (event, result) not in self.refuses:
            self.events.append((event, result, dict(what), actor or current_actor()))

    note = record

    @property
    def results(self) -> list[tuple[str, str]]:
        return [(event, result) for event, result, _, _ in self.events]


@pytest.fixture
def audit() -> Memory:
    return Memory()


def uses_key(reference: str) -> Callable[[AgentModel, Action], None]:
    def act(model: AgentModel, action: Action) -> None:
        if action is Action.LOAD:
            model.key(reference)
            model.report(digests={"f": "00"}, note="n", signer="Jane")

    return act


def test_a_life_is_recorded_with_who_did_what(
    make_bench: MakeBench, agents: Agents, audit: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "the secret itself")
    agents.does["a"] = uses_key("env:A_KEY")
    bench = make_bench(audit=audit)
    with acting_as(Actor("client", "ann")):
        chain = bench.load("a")
        chain.attest()
    chain.complete()
    with acting_as(Actor("client", "bob")):
        chain.unload()
    chain.unload_complete()
    assert audit.results == [
        ("load", "started"),
        ("key", "used"),
        ("load", "loaded"),
        ("unload", "started"),
        ("unload", "unloaded"),
    ]
    assert [actor.client for *_, actor in audit.events] == ["ann", "ann", "ann", "bob", "bob"]
    (agent,) = audit.events[2][2]["agents"]
    assert agent == {
        "agent": "a",
        "origin": "config",
        "outcome": "ok",
        "digests": {"f": "00"},
        "signers": ["Jane"],
        "notes": ["n"],
        "evidence": [],
    }
    assert "the secret itself" not in repr(audit.events)


def test_a_program_that_does_not_attest_has_the_line_with_complete(make_bench: MakeBench, audit: Memory) -> None:
    make_bench(audit=audit).load("a").complete()
    assert audit.results == [("load", "started"), ("load", "loaded")]


def test_failures_and_cancelled_loads_are_recorded_once(make_bench: MakeBench, agents: Agents, audit: Memory) -> None:
    bench = make_bench(audit=audit)
    agents.raise_at("a LOAD")
    with pytest.raises(AgentRefusedError):
        bench.load("a")
    agents.fails.clear()
    with pytest.raises(RepoAgentError):
        bench.loader.load(bench.model("a"), cancelled=lambda: True)
    with pytest.raises(RepoAgentError):
        bench.loader.load(bench.model("a", extra="nonsense"))
    assert [result for _, result in audit.results] == [
        *("started", "failed"),
        *("started", "cancelled"),
        *("started", "failed"),
    ]
    assert "a LOAD fails" in audit.events[1][2]["error"]


def test_without_the_first_line_nothing_of_it_is_read(make_bench: MakeBench, agents: Agents, audit: Memory) -> None:
    audit.refuses = {("load", "started")}
    with pytest.raises(AuditError):
        make_bench(audit=audit).load("a")
    assert agents.events == []


def test_without_its_line_no_key_is_given(
    make_bench: MakeBench, agents: Agents, audit: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "secret")
    given: list[bytes] = []
    agents.does["a"] = lambda model, action: given.append(model.key("env:A_KEY")) if action is Action.LOAD else None
    audit.refuses = {("key", "used")}
    bench = make_bench(audit=audit)
    with pytest.raises(RepoAgentError, match="no room"):
        bench.load("a")
    assert given == []
    assert bench.left_over() == []


def test_a_key_that_is_not_there_is_recorded(make_bench: MakeBench, agents: Agents, audit: Memory) -> None:
    agents.does["a"] = uses_key("env:THIS_IS_NOT_SET")
    with pytest.raises(RepoAgentError):
        make_bench(audit=audit).load("a")
    failed = [what for event, result, what, _ in audit.events if (event, result) == ("key", "failed")]
    assert failed == [
        {"model": "m", "agent": "a", "reference": "env:THIS_IS_NOT_SET", "error": "NotFoundError"},
    ]


@pytest.mark.parametrize(
    ("reference", "shown"),
    [
        ("env:NAME", "env:NAME"),
        ("file:/run/key", "file:/run/key"),
        ("file:///run/key", "file:///run/key"),
        ("AGE-SECRET-KEY-1QQQ", "not a reference"),
        ("hunter2:with-colon", "not a reference"),
        (":", "not a reference"),
        ("", "not a reference"),
    ],
)
def test_a_reference_is_shown_without_what_may_be_a_secret(reference: str, shown: str) -> None:
    assert shown_reference(reference, SCHEMES) == shown


@pytest.mark.parametrize("reference", ["env:hunter2 is the key", "exec:vault read -token=hunter2", "file:hunter2"])
def test_of_other_references_there_is_a_digest(reference: str) -> None:
    shown = shown_reference(reference, SCHEMES)
    assert "hunter2" not in shown
    assert "SHA-256" in shown


def test_many_digests_become_one(make_bench: MakeBench, agents: Agents, audit: Memory) -> None:
    digests = {f"file {n}": f"{n:064x}" for n in range(1000)}
    agents.does["a"] = lambda model, action: model.report(digests=digests) if action is Action.LOAD else None
    make_bench(audit=audit).load("a").complete()
    (agent,) = audit.events[-1][2]["agents"]
    assert list(agent["digests"]) == ["1000 files"]


def _report(digests: Mapping[str, str], model: AgentModel, action: Action) -> None:
    if action is Action.LOAD:
        model.report(digests=digests)


def test_of_many_digests_one_name_is_never_two_lines(make_bench: MakeBench, agents: Agents, audit: Memory) -> None:
    others = {f"file {n}": f"{n:064x}" for n in range(1000)}
    two, one = {"a": "0" * 64, "b": "1" * 64}, {f"a\n{'1' * 64}  b": "0" * 64}
    seen: set[str] = set()
    for digests in two | others, one | others:
        agents.does["a"] = partial(_report, digests)
        make_bench(audit=audit).load("a").complete()
        seen.update(audit.events[-1][2]["agents"][0]["digests"].values())
    assert len(seen) == 2


def test_decisions_of_the_policy_are_recorded(
    tmp_path_factory: pytest.TempPathFactory, audit: Memory, config: Callable[..., ModelConfig]
) -> None:
    from tests.loader.policy.conftest import KnownAgents

    path = tmp_path_factory.mktemp("policy") / "policy.toml"
    path.write_text(
        '[[rule]]\nmodels = ["m"]\nbefore = ["a"]\nagents = ["b"]\n[[rule]]\nmodels = ["w"]\nmode = "warn"\n'
        "agents = []\n"
    )
    planner = PolicyPlanner(read_policy(path), KnownAgents(), audit=audit)
    planner.plan("m", config("b"))
    with pytest.raises(RepoAgentError):
        planner.plan("m", config("c"))
    planner.plan("w", config("c"))
    assert audit.results == [("policy", "planned"), ("policy", "refused"), ("policy", "warned"), ("policy", "planned")]
    assert audit.events[0][2]["agents"] == ["policy: a", "config: b"]
    assert (audit.events[1][2]["rule"], audit.events[2][2]["rule"]) == (1, 2)


@pytest.fixture
def config() -> Callable[..., ModelConfig]:
    def make(*agents: str) -> ModelConfig:
        entries = ", ".join(f'{{ name: "{agent}" }}' for agent in agents)
        return read_text(f"model_repository_agents {{ agents [{entries}] }}")

    return make
