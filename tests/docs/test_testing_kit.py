"""The page of the testing kit has everything that there is."""

import inspect
from typing import Any

import pytest

from repoagent.testing import STORAGE_POINTS, AgentContract, FaultInjection, Outcome, plugin
from repoagent.testing.contract.subject import Subject

HELPERS = {
    "accepts_the_good_model",
    "calls_in_load",
    "name",
    "open_harness",
    "run_bad",
    "run_good",
    "try_good_model",
    "write_model",
}
"""What the contract's own tests use."""


@pytest.fixture
def rows(pages: dict[str, Any]) -> list[str]:
    """The rows of the page's tables, without their first bar."""
    lines = pages["docs/reference/testing.md"].text.splitlines()
    return [line.removeprefix("| ") for line in lines if line.startswith("| `")]


def public(kind: type) -> list[str]:
    names = {*vars(kind), *inspect.get_annotations(kind)}
    return sorted(name for name in names if not name.startswith("_"))


def first_cell(row: str) -> str:
    return row.partition(" |")[0]


@pytest.mark.parametrize("name", [*plugin.__all__, *STORAGE_POINTS])
def test_every_fixture_and_storage_point_has_a_row(name: str, rows: list[str]) -> None:
    assert f"`{name}`" in [first_cell(row) for row in rows]


@pytest.mark.parametrize("name", [name for name in dir(AgentContract) if name.startswith("test_")])
def test_every_test_of_the_contract_has_a_row(name: str, rows: list[str]) -> None:
    assert f"`{name}`" in [first_cell(row) for row in rows]


@pytest.mark.parametrize("name", sorted(set(public(Subject)) - HELPERS))
def test_every_attribute_of_the_contract_has_a_row(name: str, rows: list[str]) -> None:
    assert any(f"`{name}`" in first_cell(row) for row in rows)


@pytest.mark.parametrize("name", public(Outcome))
def test_every_member_of_an_outcome_has_a_row(name: str, rows: list[str]) -> None:
    assert any(f"`{name}{end}" in first_cell(row) for end in "`(" for row in rows)


@pytest.mark.parametrize("name", ["at", "fail", "cancel", "kill", "reset"])
def test_every_kind_of_fault_has_a_row_with_its_parameters(name: str, rows: list[str]) -> None:
    parameters = list(inspect.signature(getattr(FaultInjection, name)).parameters)[1:]
    (row,) = [row for row in rows if row.startswith(f"`{name}(")]
    assert [parameter for parameter in parameters if parameter not in first_cell(row)] == []
