"""Clients of OpenAI's API as they come from the package index, each in an environment of its own, over a real server.

A program of ``openai_clients/`` has the name of its client's distribution. `make openai-clients` makes them.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from server_stub.tests.serve.conftest import World
from tests.warm import Warm

pytestmark = pytest.mark.slow

CLIENTS: Final = Path(os.environ.get("REPOAGENT_TESTS_CLIENTS") or "/nonexistent")
PROGRAMS: Final = Path(__file__).with_name("openai_clients")
REPOSITORY: Final = Path(__file__).parents[3] / "examples" / "chat" / "repository"
MODEL: Final = "elmbrook"
OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "true"}

LIGHT: Final = {"openai": "openai", "pydantic_ai_slim": "pydantic_ai"}
"""Clients of a few packages, which change no version of the others, by the names of their programs: their modules."""

CHECKS: Final[dict[str, Callable[[Any], bool]]] = {
    "texts": lambda text: text == "The baker of Elmbrook is Ada.",
    # Those of the question in its template, and of the answer.
    "tokens": lambda number: number == 26,
    "finish": lambda reason: reason == "stop",
    "visits": lambda visit: visit in ({"place": "the mill"}, {"place": "the inn"}),
    "villagers": lambda found: found["name"] in {"Ada", "Bruno"} and found["job"] in {"smith", "baker"},
}
"""What every member of a list that a program prints must be."""


def _python(client: str) -> Path:
    """The interpreter that has the client. Light ones are also among what all tests need."""
    found = CLIENTS / client.replace("_", "-") / "bin" / "python"
    here = client in LIGHT and importlib.util.find_spec(LIGHT[client]) is not None
    return Path(sys.executable) if here and not found.exists() else found


def _needs(client: str) -> Any:
    reason = f"{client} is not installed: `make openai-clients` makes its environment"
    return pytest.param(client, marks=pytest.mark.skipif(not _python(client).exists(), reason=reason))


_NAMES: Final = sorted(path.stem.removeprefix("with_") for path in PROGRAMS.glob("with_*.py"))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Iterator[str]:
    """Of the chat model of the examples, which is small, trained and guided."""
    with ExitStack() as stack:
        world = World(tmp_path_factory.mktemp("world"), stack, warm)
        server = world.start("--allow-openai=true", "--allow-grpc=false", repository=str(REPOSITORY)).wait_ready()
        yield f"http://{server.address}/v1"
        assert "Traceback" not in server.log


def _run(client: str, url: str) -> dict[str, list[Any]]:
    command = [_python(client), PROGRAMS / f"with_{client}.py", url, MODEL, REPOSITORY / MODEL / "1"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=200, env=os.environ | OFFLINE)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("client", [_needs(name) for name in _NAMES if name != "lm_eval"])
def test_texts_are_the_same_whole_and_streamed_and_what_is_demanded_fits(client: str, url: str) -> None:
    found = _run(client, url)
    assert found
    for what, members in found.items():
        assert members, what
        assert all(map(CHECKS[what], members)), (what, members)


@pytest.mark.parametrize("client", [_needs("lm_eval")])
def test_a_harness_scores_endings_by_their_log_probs(client: str, url: str) -> None:
    found = _run(client, url)
    assert found["accuracy"] == [1]
    scores, greedy = zip(*found["scores"], strict=True)
    assert greedy == (False, True, False)
    assert scores[1] > -0.1 > -5 > max(scores[0], scores[2])
