"""T10: what the server starts inherits neither the server's own variables nor those that hold keys."""

import sys
from pathlib import Path

import pytest

from repoagent.errors import NotFoundError
from repoagent.loader.agent_model import run_child
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.policy import PolicyPlanner, read_policy
from repoagent.serving.core import ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.storage.secrets.keys import builtin_providers, resolve_key
from tests.hostile.policy.ground import Ground

PRINT = [sys.executable, "-c", "import os; print(*sorted(os.environ))"]
MODEL = b"""
import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([], parameters={"names": " ".join(os.environ)}) for _ in requests]
"""
CONFIG = b'backend: "python" parameters { key: "EXECUTION" value { string_value: "process" } }'


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REPOAGENT_SERVE_HTTP_RESTRICTED_API", "MODEL_KEY_OF_A_TEST", "AN_ORDINARY_NAME"):
        monkeypatch.setenv(name, "secret")


def by_an_agent() -> set[str]:
    return set(run_child(PRINT, timeout=60, env=None, cancelled=lambda: False).stdout.split())


def by_a_key_reference() -> set[str]:
    command = f"exec:{sys.executable} -c 'import os; print(*sorted(os.environ))'"
    return set(resolve_key(command, builtin_providers(commands=True)).decode().split())


def by_a_model(core: ServingCore) -> set[str]:
    response = core.infer(InferRequest(Asked("m", {})))
    return set(str(response.parameters["names"]).split())


@pytest.mark.slow
def test_no_child_inherits_a_key_that_was_asked_for(ground: Ground) -> None:
    assert resolve_key("env:MODEL_KEY_OF_A_TEST", builtin_providers()) == b"secret"
    ground.write({"config.pbtxt": CONFIG, "1/model.py": MODEL})
    core = ground.core("")
    core.load("m")
    for names in (by_an_agent(), by_a_key_reference(), by_a_model(core)):
        assert "AN_ORDINARY_NAME" in names
        assert "PATH" in names
        assert "MODEL_KEY_OF_A_TEST" not in names
        own = {name for name in names if name.startswith("REPOAGENT_")}
        assert own == {"REPOAGENT_STARTED_BY"}  # what the sentinel knows them by


def test_the_keys_of_the_policy_are_hidden_before_any_agent_asks(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLICY_KEY_OF_A_TEST", "secret")
    assert "POLICY_KEY_OF_A_TEST" in by_an_agent()
    path = ground.path / "p.toml"
    path.write_text(
        '[[rule]]\nmodels = ["m"]\n'
        'before = [{ agent = "decrypt", parameters = { identity = "env:POLICY_KEY_OF_A_TEST" } }]\n'
    )
    PolicyPlanner(read_policy(path), AgentRegistry(None))
    assert "POLICY_KEY_OF_A_TEST" not in by_an_agent()


def test_an_agent_can_give_a_child_what_it_needs() -> None:
    done = run_child(PRINT, timeout=60, env={"REPOAGENT_KBS_URL": "http://[::1]"}, cancelled=lambda: False)
    assert "REPOAGENT_KBS_URL" in done.stdout.split()


@pytest.mark.parametrize("name", ["PATH", "HOME", "LC_ALL"])
def test_a_model_that_names_a_common_variable_takes_it_from_nobody(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, __import__("os").environ.get(name, "C"))
    resolve_key(f"env:{name}", builtin_providers())
    assert name in by_an_agent()


def test_a_name_that_is_not_set_yet_is_hidden_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        resolve_key("env:A_LATER_KEY_OF_A_TEST", builtin_providers())
    monkeypatch.setenv("A_LATER_KEY_OF_A_TEST", "secret")
    assert "A_LATER_KEY_OF_A_TEST" not in by_an_agent()
