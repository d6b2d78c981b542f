"""The reference names every metric, and the parameters of everything that an agent may call."""

import inspect
import re
from typing import Any

import pytest

from repoagent.api import AgentModel
from repoagent.server.exposition.agents import AgentMetrics
from repoagent.server.exposition.page import Machine, inference_families

FAMILIES = [*inference_families([]), *AgentMetrics().families(), *Machine().families()]
METHODS = [name for name, member in vars(AgentModel).items() if inspect.isfunction(member) and not name.startswith("_")]


@pytest.mark.parametrize("name", sorted(family.name for family in FAMILIES))
def test_every_metric_is_documented(name: str, pages: dict[str, Any]) -> None:
    assert f"`{name}`" in pages["docs/reference/http.md"].text


@pytest.mark.parametrize("name", METHODS)
def test_the_reference_of_an_agent_models_method_has_its_parameters(name: str, pages: dict[str, Any]) -> None:
    parameters = list(inspect.signature(getattr(AgentModel, name)).parameters)[1:]
    lines = pages["docs/reference/agents-api.md"].text.splitlines()
    (row,) = [line for line in lines if re.match(rf"\| .*`{name}\(", line)]
    assert [parameter for parameter in parameters if parameter not in row.partition(f"`{name}(")[2]] == []
