"""Every agent, and every parameter of it, is documented where its user looks."""

from typing import Any

import pytest

from repoagent.loader.discovery import AgentRegistry
from tests.docs.conftest import AGENTS, parameters_of


@pytest.mark.parametrize("agent", AGENTS)
def test_every_parameter_of_an_agent_has_a_row_in_its_readme(agent: str, pages: dict[str, Any]) -> None:
    rows = [line for line in pages[f"agents/{agent}/README.md"].text.splitlines() if line.startswith("| ")]
    assert [name for name in parameters_of(agent) if not any(f"`{name}`" in row for row in rows)] == []


@pytest.mark.parametrize("agent", AGENTS)
def test_every_agent_is_in_the_readme_of_the_project(agent: str, pages: dict[str, Any]) -> None:
    assert f"(agents/{agent}/README.md)" in pages["README.md"].text


@pytest.mark.parametrize("agent", AGENTS)
def test_every_agent_is_offered_by_its_package(agent: str) -> None:
    assert AgentRegistry(None).find(agent).distribution == f"repoagent-{agent}"
