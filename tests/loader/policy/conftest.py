"""An installed package with two agents, a registry over it, and a way to make a planner from the text of a policy."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from repoagent.config import ModelConfig, read_text
from repoagent.loader.agent_directory import PINNED_CODE
from repoagent.loader.discovery import AgentInfo, AgentRegistry
from repoagent.loader.policy import PolicyPlanner, read_policy


@pytest.fixture(autouse=True)
def nothing_stays_pinned() -> Iterator[None]:
    """Pins are of the process, and other tests import other copies of the same packages."""
    yield
    PINNED_CODE.clear()


class KnownAgents(AgentRegistry):
    """A registry that knows agents "a", "b" and "c" of a distribution that is not really installed."""

    def __init__(self) -> None:
        super().__init__(None, group="repoagent.tests.nothing")

    def find(self, name: str) -> AgentInfo:
        return AgentInfo(name, "1.2.3", "some-agents", "package", f"some_agents:{name}", "available")


@pytest.fixture
def known_agents() -> AgentRegistry:
    return KnownAgents()


@pytest.fixture
def planner(tmp_path: Path) -> Callable[[str], PolicyPlanner]:
    def make(text: str) -> PolicyPlanner:
        path = tmp_path / "policy.toml"
        path.write_text(text)
        return PolicyPlanner(read_policy(path), KnownAgents())

    return make


@pytest.fixture
def config() -> Callable[..., ModelConfig]:
    def make(*agents: str, **fields: str) -> ModelConfig:
        lines = [f'{key}: "{value}"' for key, value in fields.items()]
        entries = ", ".join(f'{{ name: "{agent}" }}' for agent in agents)
        return read_text("\n".join([*lines, f"model_repository_agents {{ agents [{entries}] }}"]))

    return make
