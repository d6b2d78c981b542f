"""Fixtures for tests of agents; pytest finds them by itself where ``repoagent-core`` is installed.

Importing this module is all that happens in a test run that does not use them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from repoagent.testing.faults import FaultInjection
    from repoagent.testing.harness import AgentHarness, FakeKeys
    from repoagent.testing.killing import Child, KillHarness
    from repoagent.testing.repository import ModelRepo

__all__ = ["agent_harness", "fake_keys", "fault_injection", "kill_child", "kill_harness", "model_repo"]

# Failed assertions of the contract show their values, as those in test files do.
pytest.register_assert_rewrite("repoagent.testing.contract")


@pytest.fixture
def model_repo(tmp_path: Path) -> "ModelRepo":
    """An empty model repository to add models to."""
    from repoagent.testing.repository import ModelRepo

    return ModelRepo(tmp_path / "repository")


@pytest.fixture
def fake_keys() -> "FakeKeys":
    """The keys behind ``fake:NAME`` for ``agent_harness``."""
    from repoagent.testing.harness import FakeKeys

    return FakeKeys()


@pytest.fixture
def fault_injection() -> "FaultInjection":
    """What is to go wrong in ``agent_harness``."""
    from repoagent.testing.faults import FaultInjection

    return FaultInjection()


@pytest.fixture
def agent_harness(tmp_path: Path, fake_keys: "FakeKeys", fault_injection: "FaultInjection") -> "Iterator[AgentHarness]":
    """A private loader for the installed agents and those that the test adds."""
    from repoagent.testing.harness import AgentHarness

    with AgentHarness(tmp_path / "harness", keys=fake_keys, faults=fault_injection) as harness:
        yield harness


@pytest.fixture(scope="session")
def kill_child() -> "Iterator[Child]":
    """The process behind ``kill_harness``, for harnesses with other arguments; started when first asked for."""
    from repoagent.testing.killing import Child

    with Child() as child:
        yield child


@pytest.fixture
def kill_harness(tmp_path: Path, kill_child: "Child") -> "Iterator[KillHarness]":
    """Loads in child processes that are killed at named points."""
    from repoagent.testing.killing import KillHarness

    with KillHarness(tmp_path / "killed", kill_child) as harness:
        yield harness
