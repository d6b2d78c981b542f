"""From a configuration to a chain."""

from repoagent.api import Parameters
from repoagent.config import read_text
from repoagent.loader.plan import ConfigPlanner, PlannedAgent


def test_the_configuration_is_the_plan_in_its_order_with_its_repeats() -> None:
    config = read_text(
        """
        model_repository_agents { agents [
          { name: "b" parameters { key: "k" value: "1" } parameters { key: "k" value: "2" } },
          { name: "a" },
          { name: "b" }
        ] }
        """
    )
    first, second, third = ConfigPlanner().plan("m", config)
    assert (first.name, list(first.parameters.items()), first.origin) == ("b", [("k", "1"), ("k", "2")], "config")
    assert (second.name, third.name) == ("a", "b")


def test_without_configuration_there_is_nothing_to_run() -> None:
    assert list(ConfigPlanner().plan("m", None)) == []


def test_a_planned_agent_does_not_show_the_values_of_its_parameters() -> None:
    assert "secret" not in repr(PlannedAgent("a", Parameters([("key", "secret")])))
