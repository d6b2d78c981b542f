"""Which versions a policy serves."""

import pytest

from repoagent.config import AgentEntry, ModelConfig, agent_entries, no_version, read_text, select_versions


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("", [10]),
        ("version_policy { latest { num_versions: 1 } }", [10]),
        ("version_policy { latest { num_versions: 2 } }", [3, 10]),
        ("version_policy { latest { num_versions: 9 } }", [1, 3, 10]),
        ("version_policy { latest { } }", []),
        ("version_policy { all { } }", [1, 3, 10]),
        ("version_policy { }", [1, 3, 10]),
        ("version_policy { specific { versions: [ 10, 1, 7 ] } }", [1, 10]),
        ("version_policy { specific { } }", []),
    ],
)
def test_the_policy_selects_among_the_available_versions(policy: str, expected: list[int]) -> None:
    assert select_versions(read_text(policy), [3, 10, 1, 3]) == expected


def test_nothing_available_is_nothing_served() -> None:
    assert select_versions(read_text(""), []) == []


def test_what_there_is_instead_is_told() -> None:
    assert no_version("m", []).endswith("of model 'm': there is no version directory (1, 2, ...)")
    assert no_version("m", [10, 1]).endswith("of model 'm': there are only 1, 10")
    assert no_version("1", []).endswith("; '1' is itself the name of one: the repository may be a directory higher")


def test_agents_come_in_the_order_of_the_file_the_same_one_twice_too() -> None:
    agents = '{ name: "b" parameters { key: "k" value: "v" } }, { name: "a" }, { name: "b" }'
    config = read_text(f"model_repository_agents {{ agents [ {agents} ] }}")
    assert agent_entries(config) == [AgentEntry("b", (("k", "v"),)), AgentEntry("a"), AgentEntry("b")]


def test_a_config_without_agents_has_none() -> None:
    assert agent_entries(ModelConfig()) == []


def test_the_repr_of_an_entry_shows_no_values() -> None:
    assert repr(AgentEntry("a", (("key", "hunter2"),))) == "AgentEntry(name='a', parameters=['key'])"
