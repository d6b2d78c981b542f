"""The harness, its repository, its keys and its faults."""

import errno
from pathlib import Path

import pytest

from repoagent.api import Agent
from repoagent.config import read_text
from repoagent.errors import AgentNotFoundError, AgentRefusedError, CancelledError, NotFoundError, UnsafePathError
from repoagent.testing import AgentHarness, FakeKeys, FaultInjection, InjectedError, ModelRepo, remote_source

WHOLE_LIFE = ["initialize", "model_initialize", "LOAD", "LOAD_COMPLETE", "UNLOAD", "UNLOAD_COMPLETE"]


@pytest.fixture
def model(model_repo: ModelRepo, agent_harness: AgentHarness, stamp: type[Agent]) -> Path:
    agent_harness.add("stamp", stamp)
    return model_repo.add("m", agents=[("stamp", {"text": "seen"})], config="max_batch_size: 4")


def test_a_run_gives_what_a_backend_would_have_got(agent_harness: AgentHarness, model: Path) -> None:
    outcome = agent_harness.run(model)
    assert outcome.loaded
    assert outcome.files == {"1/model.bin": b"weights", "1/stamp": b"seen"}
    assert read_text(outcome.config).max_batch_size == 4
    assert outcome.calls("stamp") == [*WHOLE_LIFE, "model_finalize", "finalize"]
    assert [action.action for action in outcome.report.entries[0].actions] == WHOLE_LIFE[2:]
    assert outcome.left == ()


def test_a_refusal_is_an_outcome(agent_harness: AgentHarness, fault_injection: FaultInjection, model: Path) -> None:
    fault_injection.fail("stamp LOAD")
    outcome = agent_harness.run(model)
    assert isinstance(outcome.error, AgentRefusedError)
    assert isinstance(outcome.error.__cause__, InjectedError)
    assert (outcome.report.outcome, outcome.files, outcome.config) == ("failed", {}, "")
    assert "injected at 'stamp LOAD'" in outcome.log
    assert agent_harness.run(model).loaded, "a fault happens once"


def test_a_model_can_be_left_loaded(agent_harness: AgentHarness, model: Path) -> None:
    chain = agent_harness.load(model)
    assert [path.name for path in agent_harness.left_over() if path.is_file()] == ["model.bin", "stamp"]
    chain.fail(RuntimeError("enough"))
    assert agent_harness.left_over() == []


@pytest.mark.parametrize("where", ["stamp acquire_location", "after stamp acquire_location", "stamp update_location"])
def test_what_an_agent_asks_its_model_for_can_fail(
    agent_harness: AgentHarness, fault_injection: FaultInjection, model: Path, where: str
) -> None:
    fault_injection.fail(where, OSError(errno.ENOSPC, "No space left on device"))
    outcome = agent_harness.run(model)
    assert "No space left" in str(outcome.error)
    assert outcome.left == ()


def test_a_load_can_be_cancelled_at_a_point(
    agent_harness: AgentHarness, fault_injection: FaultInjection, model: Path
) -> None:
    fault_injection.cancel("after stamp LOAD")
    assert isinstance(agent_harness.run(model).error, CancelledError)
    fault_injection.reset()
    assert agent_harness.run(model).loaded


def test_the_disk_can_be_full(agent_harness: AgentHarness, fault_injection: FaultInjection, model: Path) -> None:
    fault_injection.room = 99
    assert "needs 100 bytes" in str(agent_harness.run(model).error)
    fault_injection.room = 100
    assert agent_harness.run(model).loaded


def test_storage_can_fail(
    agent_harness: AgentHarness, fault_injection: FaultInjection, model_repo: ModelRepo, check: type[Agent]
) -> None:
    agent_harness.add("check", check)
    fault_injection.fail("storage snapshot file #2", OSError(errno.EIO, "Input/output error"))
    outcome = agent_harness.run(model_repo.add("m", agents=["check"]))
    assert "Input/output error" in str(outcome.error)
    assert outcome.left == ()


def test_a_remote_store_can_fail(agent_harness: AgentHarness, model: Path) -> None:
    reads: list[str] = []

    def before_read(path: str) -> None:
        reads.append(path)
        if path.endswith("model.bin"):
            raise PermissionError("the store says no")

    outcome = agent_harness.run(remote_source(model, before_read=before_read))
    assert "the store says no" in str(outcome.error)
    # Files are read side by side, so that the failing one may be the only one.
    assert any(path.endswith("model.bin") for path in reads)
    assert all(path.startswith(str(model)) for path in reads)


def test_points_are_told_in_order_and_counted(
    agent_harness: AgentHarness, fake_keys: FakeKeys, model_repo: ModelRepo, check: type[Agent]
) -> None:
    agent_harness.add("check", check)
    assert fake_keys.put("k", b"secret") == "fake:k"
    outcome = agent_harness.run(model_repo.add("m", agents=["check"]))
    own = [point for point in outcome.passed if point.partition("check ")[0] in ("", "after ")]
    assert own[:14] == [
        "check initialize", "after check initialize", "check model_initialize", "after check model_initialize",
        "check LOAD", "check cancelled", "after check cancelled", "check cache", "after check cache",
        "check key", "after check key", "check key #2", "after check key #2", "after check LOAD",
    ]  # fmt: skip
    assert fake_keys.asked == ["fake:k", "fake:k"]
    assert "storage cache publish" in outcome.passed


def test_a_key_that_the_test_did_not_put_is_not_found() -> None:
    with pytest.raises(NotFoundError, match="the test has no key at fake:other"):
        FakeKeys()("fake:other")


def test_installed_agents_are_there_and_others_are_not(agent_harness: AgentHarness, model_repo: ModelRepo) -> None:
    assert agent_harness.run(model_repo.add("m", agents=["checksum"])).loaded
    assert isinstance(agent_harness.run(model_repo.add("m", agents=["chekcsum"])).error, AgentNotFoundError)


def test_a_ready_object_can_be_under_test(
    agent_harness: AgentHarness, model_repo: ModelRepo, stamp: type[Agent]
) -> None:
    agent_harness.add("object", stamp())
    assert agent_harness.run(model_repo.add("m", agents=["object"])).files["1/stamp"] == b""


def test_a_repository_keeps_the_order_and_repeats_of_parameters(model_repo: ModelRepo) -> None:
    model = model_repo.add("m", agents=["a", ("b", [("k", "1"), ("j", "2"), ("k", "3")])])
    agents = read_text((model / "config.pbtxt").read_text()).model_repository_agents.agents
    assert [(agent.name, [(p.key, p.value) for p in agent.parameters]) for agent in agents] == [
        ("a", []),
        ("b", [("k", "1"), ("j", "2"), ("k", "3")]),
    ]


def test_a_repository_does_not_write_outside_of_a_model(model_repo: ModelRepo) -> None:
    with pytest.raises(UnsafePathError):
        model_repo.add("m", {"../other": b""})


def test_the_same_model_can_be_had_as_a_remote_one(model_repo: ModelRepo, model: Path) -> None:
    assert model_repo.remote("m").is_remote
    assert not model_repo.source("m").is_remote
    assert [entry.path for entry in model_repo.remote("m").entries()] == ["1/model.bin", "config.pbtxt"]
