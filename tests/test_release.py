"""The workflows: what a release checks before it publishes, and who may; what a pull request must pass; the forms."""

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
        TREE / "llm/pyproject.toml",
        TREE / "server_stub/pyproject.toml",
        TREE / "deploy/ray/pyproject.toml",
        TREE / "contrib/vllm/pyproject.toml",
        *TREE.glob("agents/*/pyproject.toml"),
    }


def test_a_pull_request_must_pass_what_lands_on_every_supported_python() -> None:
    """U17: there was none."""
    checks = yaml.safe_load((TREE / ".github/workflows/pull_request.yml").read_text())
    assert "pull_request" in checks[True]
    assert "pull_request_target" not in checks[True], "code of others would run with our rights"
    assert checks["permissions"] == {"contents": "read"}
    (job,) = checks["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert _step(job, "checkout")["with"] == {"persist-credentials": False}
    lowest = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    assert job["strategy"]["matrix"]["python"] == [lowest, "3.12", "3.13", "3.14"]


def test_every_issue_form_asks_for_something_and_leads_weaknesses_elsewhere() -> None:
    """U17: there were none."""
    forms = [yaml.safe_load(file.read_text()) for file in sorted((TREE / ".github/ISSUE_TEMPLATE").glob("*.yml"))]
    assert len(forms) == 2
    for form in forms:
        assert {"name", "description", "body"} <= form.keys()
        fields = [field["id"] for field in form["body"] if field["type"] != "markdown"]
        assert len(fields) == len(set(fields)) > 1
    assert "SECURITY.md" in str(forms[0]["body"])
    assert "privately" in (TREE / "SECURITY.md").read_text()


def test_pre_commit_has_the_linters_of_this_tree() -> None:
    hooks = yaml.safe_load((TREE / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert [hook["entry"].partition(" --")[0] for hook in hooks] == ["ruff check", "ruff format", "make lint"]
    pinned = {version for hook in hooks for version in hook.get("additional_dependencies", [])}
    assert pinned <= set((TREE / "constraints.txt").read_text().splitlines())
