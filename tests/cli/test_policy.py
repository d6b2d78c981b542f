"""``repoagent policy``: what it prints and how it exits."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from repoagent.cli.policy import policy
from repoagent.errors import ConfigError

RULES = """
[[rule]]
models = ["fraud-*"]
before = ["checksum"]
agents = [{ name = "decrypt", version = "0.1.*" }]
backends = []
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(RULES)
    return path


def test_check_says_ok(file: Path) -> None:
    result = CliRunner().invoke(policy, ["check", str(file)])
    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == f"{file}: ok (1 rule)"


def test_check_warns_and_is_strict_when_asked(file: Path) -> None:
    file.write_text(RULES.replace("backends = []", ""))
    warned = CliRunner().invoke(policy, ["check", str(file)])
    assert "warning: rule 1 (models fraud-*): agent 'checksum': it has no parameter" in warned.output
    strict = CliRunner().invoke(policy, ["check", "--strict", str(file)])
    assert strict.exit_code == 1
    assert "ok" not in strict.output.splitlines()[-1]


def test_check_finds_a_demanded_agent_that_is_not_there(file: Path) -> None:
    file.write_text(RULES.replace('"checksum"', '"cheksum"'))
    result = CliRunner().invoke(policy, ["check", str(file)])
    assert result.exit_code == 1
    assert "did you mean 'checksum'" in result.output


def test_check_passes_on_what_is_wrong_in_the_file(file: Path) -> None:
    file.write_text("[[rule]]")
    result = CliRunner().invoke(policy, ["check", str(file)])
    assert isinstance(result.exception, ConfigError)


def test_explain_shows_what_holds_for_a_model(file: Path) -> None:
    lines = CliRunner().invoke(policy, ["explain", "fraud-eu", "--agent-policy", str(file)]).output.splitlines()
    assert lines == [
        f"fraud-eu: rule 1 of {file} (models fraud-*)",
        "  mode: enforce",
        "  agents that run first: checksum",
        "  agents that run last: none",
        "  agents that the model may name: decrypt (version 0.1.*)",
        "  backends: none",
        "  platforms: any",
        "  commands (repoagent run, prepare): none",
        "  a load may bring a configuration: no",
    ]


def test_explain_a_model_that_no_rule_is_for(file: Path) -> None:
    output = CliRunner().invoke(policy, ["explain", "other", "--agent-policy", str(file)]).output
    assert "no rule" in output


@pytest.mark.parametrize(
    "path", ["models/fraud-eu", "./models/fraud-eu/", "models/fraud-eu/1/..", "s3://bucket/fraud-eu/"]
)
def test_explain_takes_the_path_of_a_model_as_the_model(
    file: Path, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U2: it took the path as a name, and said that no agent runs."""
    (tmp_path / "models" / "fraud-eu" / "1").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(policy, ["explain", path, "--agent-policy", str(file)])
    assert result.output.startswith(f"fraud-eu: rule 1 of {file} (models fraud-*)\n")


@pytest.mark.parametrize("path", ["models/nowhere", "/fraud-eu", ""])
def test_explain_refuses_a_path_where_there_is_no_model(file: Path, path: str) -> None:
    result = CliRunner().invoke(policy, ["explain", path, "--agent-policy", str(file)])
    assert result.exit_code == 2
    assert f"there is no directory '{path}'; give a model's name, directory or URL" in result.output
