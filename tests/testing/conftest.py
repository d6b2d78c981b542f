"""Agents that the tests of the kit run."""

import pytest

from repoagent.api import Agent, AgentModel


class StampAgent(Agent):
    """Moves the model into a new directory and adds a file to it."""

    api_version = 1

    def load(self, model: AgentModel) -> None:
        target = model.acquire_location(size_hint=100)
        (target / "1").mkdir()
        (target / "1" / "stamp").write_bytes(model.parameters.get("text", "").encode())
        (target / "1" / "model.bin").write_bytes((model.localize() / "1" / "model.bin").read_bytes())
        model.update_location(target)


class CheckAgent(Agent):
    """A guard that asks for everything twice."""

    api_version = 1
    guard = True

    def load(self, model: AgentModel) -> None:
        model.state = model.cancelled
        model.cache.get_or_build("key", lambda path: (path / "result").touch())
        model.key("fake:k")
        model.key("fake:k")


@pytest.fixture
def stamp() -> type[Agent]:
    return StampAgent


@pytest.fixture
def check() -> type[Agent]:
    return CheckAgent
