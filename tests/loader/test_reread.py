"""Which configuration holds after a move."""

import pytest

from repoagent.config import ModelConfig, read_text
from repoagent.errors import ConfigError
from repoagent.loader.reread import Move, reread

AGENTS = 'model_repository_agents { agents { name: "a" } }'


def config(text: str) -> ModelConfig:
    return read_text(f'name: "m" {AGENTS} {text}')


def after(effective: ModelConfig | None, move: Move) -> ModelConfig | None:
    return reread(effective, move, source="config.pbtxt")


def test_without_a_file_or_with_an_unchanged_one_it_stands() -> None:
    effective = config('backend: "b"')
    assert after(effective, Move('backend: "x"', None)) is effective
    assert after(effective, Move('backend: "x"', 'backend: "x"')) is effective
    assert after(None, Move(None, None)) is None


def test_a_file_replaces_it_all_but_name_and_agents() -> None:
    effective = config('backend: "b" max_batch_size: 4')
    moved = after(effective, Move("", 'name: "evil" platform: "p" model_repository_agents { agents { name: "z" } }'))
    assert moved == config('platform: "p"')
    assert effective == config('backend: "b" max_batch_size: 4')


def test_a_file_that_appears_is_taken_without_its_agents() -> None:
    assert after(None, Move(None, f'name: "m" backend: "b" {AGENTS}')) == read_text('name: "m" backend: "b"')


def test_a_file_that_does_not_parse_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"config.pbtxt:1:"):
        after(config(""), Move(None, "backend: ?"))


@pytest.mark.parametrize(
    ("effective", "before", "file", "expected"),
    [
        # What the agent changed wins, what it left alone does not.
        (
            'backend: "o" max_batch_size: 8',
            "max_batch_size: 2",
            'max_batch_size: 2 backend: "n"',
            'backend: "n" max_batch_size: 8',
        ),
        # A field that it removed goes.
        ('platform: "p"', 'platform: "p"', 'backend: "b"', 'backend: "b"'),
        # One that only the override has stays, though the file is without it.
        ("max_batch_size: 8", 'platform: "p"', 'platform: "q"', 'max_batch_size: 8 platform: "q"'),
        # Messages, lists and maps are taken whole.
        (
            "input { name: 'o' }",
            "input { name: 'x' }",
            "input { name: 'x' } input { name: 'y' }",
            "input { name: 'x' } input { name: 'y' }",
        ),
        # One choice of several replaces the other.
        ("dynamic_batching { }", "", "sequence_batching { }", "sequence_batching { }"),
        # No file before: what the agent had was the effective configuration.
        ('backend: "o" max_batch_size: 8', None, 'backend: "n"', 'backend: "n"'),
        # A broken file before, which the override made up for: everything in the new one counts.
        ('backend: "o" max_batch_size: 8', "backend: ?", 'backend: "n"', 'backend: "n" max_batch_size: 8'),
    ],
)
def test_under_an_override_the_file_wins_where_the_agent_changed_it(
    effective: str, before: str | None, file: str, expected: str
) -> None:
    assert after(config(effective), Move(before, file, overridden=True)) == config(expected)


def test_an_agent_that_wrote_from_the_effective_configuration_is_compared_with_that() -> None:
    move = Move("max_batch_size: 2", 'backend: "n"', from_effective=True, overridden=True)
    assert after(config('platform: "p" max_batch_size: 8'), move) == config('backend: "n"')


def test_name_and_agents_stay_under_an_override_too() -> None:
    move = Move("", 'name: "evil" model_repository_agents { agents { name: "z" } }', overridden=True)
    assert after(config(""), move) == config("")
