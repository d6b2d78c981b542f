"""The workflow that releases: what it checks before it publishes, and who may."""

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

TREE: Final = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def workflow() -> dict[Any, Any]:
    read: dict[Any, Any] = yaml.safe_load((TREE / ".github/workflows/release.yml").read_text())
    return read


def _step(job: dict[str, Any], part: str) -> dict[str, Any]:
    (found,) = [step for step in job["steps"] if part in step.get("name", step.get("uses", step.get("run", "")))]
    step: dict[str, Any] = found
    return step


def test_a_tag_starts_it_and_tests_run_first(workflow: dict[Any, Any]) -> None:
    assert workflow[True] == {"push": {"tags": ["v*"]}}, "YAML reads the key 'on' as true"
    build = workflow["jobs"]["build"]
    runs = [step["run"] for step in build["steps"] if "run" in step]
    assert runs[0] == ".ci/run"
    assert workflow["jobs"]["publish"]["needs"] == "build"


def test_only_the_job_that_signs_may_sign(workflow: dict[Any, Any]) -> None:
    assert workflow["permissions"] == {}
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert build["permissions"] == {"contents": "read"}
    assert publish["permissions"] == {"id-token": "write", "attestations": "write"}
    assert publish["environment"] == "release"
    assert not any("run" in step for step in publish["steps"]), "no code of the tree runs where signing is allowed"
    assert _step(build, "checkout")["with"] == {"persist-credentials": False}


def test_every_file_is_attested_and_published_with_attestations(workflow: dict[Any, Any]) -> None:
    publish = workflow["jobs"]["publish"]
    assert _step(publish, "attest-build-provenance")["with"] == {"subject-path": "dist/*"}
    assert _step(publish, "gh-action-pypi-publish")["with"] == {"attestations": True}
    order = [step["uses"].partition("@")[0] for step in publish["steps"]]
    assert order.index("actions/attest-build-provenance") < order.index("pypa/gh-action-pypi-publish")


@pytest.mark.parametrize("correct", [True, False])
def test_a_tag_that_is_not_the_version_of_every_distribution_stops_it(workflow: dict[Any, Any], correct: bool) -> None:
    version = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]["version"]
    tag = f"v{version}" if correct else f"v{version}9"
    check = _step(workflow["jobs"]["build"], "Check that the tag")["run"]
    environment = {**os.environ, "GITHUB_REF_NAME": tag}
    done = subprocess.run(
        ["bash", "-e", "-c", check], cwd=TREE, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) == correct, done.stdout


def test_it_builds_every_distribution_that_the_tests_build(workflow: dict[Any, Any]) -> None:
    build = _step(workflow["jobs"]["build"], "Build")["run"]
    (patterns,) = re.findall(r"for directory in (.*?); do", build)
    built = {path.resolve() for pattern in patterns.split() for path in TREE.glob(f"{pattern}/pyproject.toml")}
    assert built == {
        TREE / "pyproject.toml",
        TREE / "server_stub/pyproject.toml",
        TREE / "deploy/ray/pyproject.toml",
        *TREE.glob("agents/*/pyproject.toml"),
    }
