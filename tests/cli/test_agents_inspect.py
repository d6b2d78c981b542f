"""``repoagent agents inspect`` of agents that cannot be used: one line, which says where the fault is."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.warm import Warm

pytestmark = pytest.mark.slow
Inspect = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def inspect(warm: Warm, tmp_path: Path) -> Inspect:
    """``repoagent agents inspect NAME``, of an agent in the directory of the test."""
    return lambda name: warm.run(["agents", "inspect", name, f"--repoagent-directory={tmp_path}"])


@pytest.mark.parametrize(
    ("code", "reason", "place"),
    [
        ("\n1 / 0\n", "ZeroDivisionError: division by zero", "agent.py, line 2"),
        ("import nosuchmodule\n", "ModuleNotFoundError: No module named 'nosuchmodule'", "agent.py, line 1"),
        ("\n\nclass\n", "SyntaxError: invalid syntax", "agent.py, line 3"),
        ("from . import helper\n", "ValueError", "helper.py, line 2"),
        ("raise SystemExit\n", "SystemExit", "agent.py, line 1"),
    ],
)
def test_the_fault_is_named_with_its_place_and_without_a_traceback(
    inspect: Inspect, tmp_path: Path, code: str, reason: str, place: str
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "agent.py").write_text(code)
    (tmp_path / "mine" / "helper.py").write_text("def f():\n    raise ValueError\nf()\n")
    result = inspect("mine")
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"repoagent: agent 'mine': cannot import {tmp_path}/mine/agent.py: {reason}")
    assert line.endswith(f"({tmp_path}/mine/{place})")
    assert line.count(", line ") == 1


def test_what_has_no_place_has_none(inspect: Inspect, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "agent.py").touch()
    result = inspect("mine")
    assert result.returncode == 1
    assert result.stderr.endswith("agent.py defines no subclass of repoagent.api.Agent\n")
    assert len(result.stderr.splitlines()) == 1


def test_an_agent_without_documentation_is_not_shown_that_of_its_base_class(inspect: Inspect, tmp_path: Path) -> None:
    agent = tmp_path / "bare" / "agent.py"
    agent.parent.mkdir()
    agent.write_text(
        "from repoagent.api import Agent\n\nclass Bare(Agent):\n    api_version = 1\n    def load(self, model): pass\n"
    )
    result = inspect("bare")
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("\n\n(its class has no documentation)\n")
