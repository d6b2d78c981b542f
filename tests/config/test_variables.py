"""Variables in configuration files."""

import pytest

from repoagent.config import read_text
from repoagent.config.pbtxt import config_variables, expand
from repoagent.errors import ConfigError, InvalidArgumentError


def test_variables_are_replaced_also_inside_and_outside_of_quotes() -> None:
    text = expand('name: "m-${STAGE}"\nmax_batch_size: ${BATCH}', {"STAGE": "eu", "BATCH": "8"})
    config = read_text(text)
    assert (config.name, config.max_batch_size) == ("m-eu", 8)


@pytest.mark.parametrize("value", ['"', "'", "\\", "\n", 'a" backend: "python', "\\n"])
def test_a_value_cannot_leave_its_quotes(value: str) -> None:
    for quote in "\"'":
        config = read_text(expand(f"name: {quote}${{X}}{quote}", {"X": value}))
        assert (config.name, config.backend) == (value, "")


def test_a_value_is_not_expanded_again() -> None:
    assert expand("${A}", {"A": "${B}", "B": "b"}) == "${B}"


def test_without_variables_nothing_is_special() -> None:
    assert expand('name: "${X}"', {}) == 'name: "${X}"'


def test_a_variable_that_is_not_allowed_is_named_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"config\.pbtxt:2: the variable 'HOME' is not allowed .* allows A, B"):
        expand('name: "m"\nbackend: "${HOME}"', {"B": "1", "A": "2"})


def test_values_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_NAME", "value")
    assert config_variables(["A_NAME"]) == {"A_NAME": "value"}


@pytest.mark.parametrize(("name", "message"), [("NO_SUCH_NAME", "is not set"), ("A=B", "not a name"), ("", "not a")])
def test_a_name_that_cannot_be_used_is_refused(name: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        config_variables([name])


def test_a_value_that_reads_as_a_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_NAME", "x${B}")
    with pytest.raises(InvalidArgumentError, match=r"A_NAME contains '\$\{'"):
        config_variables(["A_NAME"])
