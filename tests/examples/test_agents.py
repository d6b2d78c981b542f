"""The example packages: each installs, is listed, and passes its own tests, the contract among them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted(
    path.parent for path in (Path(__file__).resolve().parents[2] / "examples/agents").glob("*/pyproject.toml")
)


def python(site: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them, installed with pip into a directory of their own."""
    site = tmp_path_factory.mktemp("examples") / "site"
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-build-isolation", "--no-deps"]
    done = python(site, *pip, "--target", str(site), *map(str, EXAMPLES))
    assert done.returncode == 0, done.stderr
    return site


@pytest.mark.slow
def test_all_are_listed(site: Path) -> None:
    lines = python(site, "-m", "repoagent", "agents", "list").stdout.splitlines()
    listed = {line.split()[0]: line.split()[2] for line in lines}
    assert {example.name: f"repoagent-example-{example.name}" for example in EXAMPLES}.items() <= listed.items()


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_it_passes_its_own_tests(site: Path, example: Path) -> None:
    done = python(site, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:cloudcoil", str(example))
    assert done.returncode == 0, done.stdout
    assert (example / "tests" / "test_contract.py").exists()
