"""The flags that say where agents are found, in every command that looks for some."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from repoagent.cli.main import program

AGENT = """
from repoagent.api import Agent


class Ours(Agent):
    \"\"\"The agent of the directory.\"\"\"

    api_version = 1

    def load(self, model):
        raise RuntimeError("ours was called")
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """One with agents that packages offer too."""
    for name in ("checksum", "fetch"):
        (tmp_path / "agents" / name).mkdir(parents=True)
        (tmp_path / "agents" / name / "agent.py").write_text(AGENT)
    return tmp_path / "agents"


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(program, arguments)
    return result.exit_code, f"{result.output}{result.exception or ''}"


def test_the_list_shows_the_agent_that_the_server_would_use(directory: Path) -> None:
    command = ("agents", "list", "--json", f"--repoagent-directory={directory}")
    both = {info["name"]: info for info in json.loads(run(*command)[1])}
    assert both["checksum"]["state"] == "error"
    preferred = {info["name"]: info for info in json.loads(run(*command, "--repoagent-from-directory", "checksum")[1])}
    assert (preferred["checksum"]["origin"], preferred["checksum"]["state"]) == ("directory", "available")
    assert preferred["fetch"]["state"] == "error"


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (("agents", "inspect", "checksum"), "The agent of the directory."),
        (("policy", "check", "policy.toml"), ""),
        (("check", "model"), "ours was called"),
        (("fetch", "https://localhost/model", "--floating"), "ours was called"),
    ],
)
def test_other_commands_use_it_too(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], shown: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("policy.toml").write_text('[[rule]]\nmodels = ["*"]\nbefore = ["checksum"]\n')
    Path("model").mkdir()
    Path("model/config.pbtxt").write_text('model_repository_agents { agents { name: "checksum" } }')
    names = ("--repoagent-from-directory=checksum", "--repoagent-from-directory=fetch")
    status, output = run(*command, f"--repoagent-directory={directory}", *names)
    assert shown in output
    assert (status == 0) == (shown != "ours was called")
