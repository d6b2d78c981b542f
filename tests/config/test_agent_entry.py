"""The agents that a configuration names."""

from repoagent.config import AgentEntry, ModelConfig, agent_entries, read_text


def test_agents_come_in_the_order_of_the_file_the_same_one_twice_too() -> None:
    agents = '{ name: "b" parameters { key: "k" value: "v" } }, { name: "a" }, { name: "b" }'
    config = read_text(f"model_repository_agents {{ agents [ {agents} ] }}")
    assert agent_entries(config) == [AgentEntry("b", (("k", "v"),)), AgentEntry("a"), AgentEntry("b")]


def test_a_config_without_agents_has_none() -> None:
    assert agent_entries(ModelConfig()) == []


def test_the_repr_of_an_entry_shows_no_values() -> None:
    assert repr(AgentEntry("a", (("key", "hunter2"),))) == "AgentEntry(name='a', parameters=['key'])"
