"""What the README shows runs as it stands."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from repoagent.api import Agent

ROOT = Path(__file__).parents[2]


@pytest.fixture
def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_first_agent_is_one(snippets: list[str]) -> None:
    module = ModuleType("readme")
    exec(snippets[0], module.__dict__)
    assert issubclass(module.__dict__["ReadmeAgent"], Agent)


def test_the_embedded_server_answers(
    snippets: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    exec(snippets[1], {})
    assert "'label': array(" in capsys.readouterr().out
