"""The reference for authors has everything that there is."""

from pathlib import Path

import pytest

from repoagent import api
from repoagent.api import ActionReport, Agent, AgentModel, EntryReport, LoadReport, hooks

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "agents-api.md").read_text()
HOOKS = [name for name in vars(hooks) if hasattr(getattr(hooks, name), "repoagent_spec")]
BENEATH = [
    name for name in api.__all__ if getattr(getattr(api, name), "__module__", "").startswith("repoagent.beneath")
]


def public(kind: type) -> list[str]:
    names = {*vars(kind), *getattr(kind, "__annotations__", {})}
    return sorted(name for name in names if not name.startswith("_"))


@pytest.mark.parametrize("name", public(Agent))
def test_every_member_of_an_agent_has_a_row(name: str) -> None:
    assert f"| `{name}" in PAGE


@pytest.mark.parametrize("name", public(AgentModel))
def test_every_member_of_an_agent_model_is_in_the_table(name: str) -> None:
    assert any(f"`{name}{after}" in PAGE for after in ("`", "(", "."))


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_has_a_row(name: str) -> None:
    assert f"| `{name}(" in PAGE


def test_there_are_hooks() -> None:
    assert {"register_backends", "load_finished"} <= set(HOOKS)


@pytest.mark.parametrize("kind", [LoadReport, EntryReport, ActionReport])
def test_every_field_of_a_report_is_named(kind: type) -> None:
    assert f"{kind.__name__}({', '.join(kind.__slots__)})" in " ".join(PAGE.split())  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", BENEATH)
def test_what_opens_files_for_authors_has_a_row(name: str) -> None:
    assert f"| `{name}(" in PAGE
