"""What the README shows runs as it stands."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from repoagent_server import KServeHttp

from repoagent.api import Agent
from repoagent.server import Server

ROOT = Path(__file__).parents[2]


@pytest.fixture
def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_it_has_at_most_900_words() -> None:
    text = (ROOT / "README.md").read_text()
    assert len([word for word in text.split() if re.search(r"\w", word)]) <= 900


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


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="the README asks with curl, which is not installed")
def test_the_first_request_is_answered_as_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "README.md").read_text()
    command = re.search(r"^\$ (curl -d .*?)\n\{(.*?)\.\.\.$", text, re.MULTILINE | re.DOTALL)
    assert command
    monkeypatch.setenv("DIGITS_IDENTITY", (ROOT / "examples/digits/identity.txt").read_text().split()[-1])
    shell = f'curl() {{ command curl -s "$@"; }}; {command[1]}'
    with (
        Server(model_repository=str(ROOT / "examples/digits/repository")) as server,
        KServeHttp(server, KServeHttp.Options(port=0)) as http,
    ):
        shell = shell.replace("127.0.0.1:8000", "{}:{}".format(*http.address))
        answer = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.startswith("{" + command[2])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="the README asks with curl, which is not installed")
def test_the_chat_is_streamed_as_shown(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    command = re.search(r"^    (curl -N .*?completions)$", text, re.MULTILINE | re.DOTALL)
    assert command
    shell = f'curl() {{ command curl -s "$@"; }}; {command[1]}'
    with (
        Server(
            model_repository=str(ROOT / "examples/chat/repository"),
            workspace_directory=str(tmp_path / "work"),
            agent_cache_directory=str(tmp_path / "cache"),
        ) as server,
        KServeHttp(server, KServeHttp.Options(port=0, allow_openai=True)) as http,
    ):
        shell = shell.replace("127.0.0.1:8000", "{}:{}".format(*http.address))
        answer = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60, check=True).stdout
    events = [line.removeprefix("data: ") for line in answer.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    pieces = [choice["delta"].get("content") or "" for event in events[:-1] for choice in json.loads(event)["choices"]]
    assert len([piece for piece in pieces if piece]) > 3
    assert "baker" in "".join(pieces)
