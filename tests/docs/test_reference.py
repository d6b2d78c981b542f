"""The reference names every metric, every route, and the parameters of everything that an agent may call."""

import inspect
import re
from typing import Any

import pytest
from repoagent_server.handlers.operations import OPERATIONS

from repoagent.api import AgentModel
from repoagent.server.exposition.agents import AgentMetrics
from repoagent.server.exposition.page import Machine, inference_families

METRICS = {family.name for family in [*inference_families([]), *AgentMetrics().families(), *Machine().families()]}
METHODS = [name for name, member in vars(AgentModel).items() if inspect.isfunction(member) and not name.startswith("_")]
OPTIONAL = re.compile(r"\(\?:.*?\)\?|\[.*?\]|/region/R")


def test_every_metric_is_documented(pages: dict[str, Any]) -> None:
    missing = METRICS - set(re.findall(r"`(\w+)`", pages["docs/reference/http.md"].text))
    assert not missing, "docs/reference/http.md has no row for them"


def test_every_route_has_a_row(pages: dict[str, Any]) -> None:
    documented = set()
    for row in re.findall(r"^\| (`(?:GET|POST) .*?) \|", pages["docs/reference/http.md"].text, re.MULTILINE):
        spans = [OPTIONAL.sub("", span.split(" ")[-1]) for span in re.findall(r"`(.*?)`", row)]
        documented |= {span.replace("...", spans[0].rpartition("/")[0]) for span in spans}
    routes = {re.sub(r"\(\?P<model>.*?\)", "M", OPTIONAL.sub("", path)) for each in OPERATIONS for path in each.paths}
    missing = {route.removeprefix("/") for route in routes} - documented
    assert not missing, "docs/reference/http.md has no row for them"


@pytest.mark.parametrize("name", METHODS)
def test_the_reference_of_an_agent_models_method_has_its_parameters(name: str, pages: dict[str, Any]) -> None:
    parameters = list(inspect.signature(getattr(AgentModel, name)).parameters)[1:]
    lines = pages["docs/reference/agents-api.md"].text.splitlines()
    (row,) = [line for line in lines if re.match(rf"\| .*`{name}\(", line)]
    assert [parameter for parameter in parameters if parameter not in row.partition(f"`{name}(")[2]] == []
