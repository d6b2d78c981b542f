"""The example agent of the tree: installed with pip as its reader would, named in a configuration, served."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from server_stub.tests.serve.conftest import PROGRAM

if TYPE_CHECKING:
    from server_stub.tests.serve.conftest import Server, World

EXAMPLE = Path(__file__).parents[3] / "examples" / "agents" / "sizelimit"


@pytest.fixture(scope="module")
def server(world: "World") -> "Server":
    site, source = world.root / "site", world.root / "sizelimit"
    shutil.copytree(EXAMPLE, source)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run([*pip, f"--target={site}", str(source)], check=True, capture_output=True, text=True, timeout=100)
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    return world.serve("--load-model=plain", env={"PYTHONPATH": path}, program=PROGRAM)


def test_a_model_below_the_limit_is_served(world: "World", server: "Server") -> None:
    world.model("small", [("sizelimit", {"max_bytes": "100000"})])
    assert server.load("small").status_code == 200
    assert server.answer("small") == [1, -2, 3, -4]


def test_a_larger_one_is_refused_with_the_agents_own_words(world: "World", server: "Server") -> None:
    directory = world.model("large", [("sizelimit", {"max_bytes": "1000"})])
    (directory / "1" / "ballast").write_bytes(bytes(5000))
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    reply = server.load("large")
    assert reply.status_code == 500
    reason = f"agent 'sizelimit': the model's files have {size} bytes; at most 1000 are allowed"
    assert reply.json()["error"].endswith(reason)
    assert server.index()["large"]["reason"] == reason
    assert server.answer("plain") == [1, -2, 3, -4]


def test_a_limit_that_is_no_number_is_refused(world: "World", server: "Server") -> None:
    world.model("unlimited", [("sizelimit", {})])
    assert "'max_bytes' must be a whole number above 0" in server.load("unlimited").text
