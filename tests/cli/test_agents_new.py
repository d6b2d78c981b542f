"""``repoagent agents new``: what it writes installs, is listed, runs and passes its tests, without an edit."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from repoagent.cli.agents import TEMPLATES, Names, agents, write_package
from repoagent.errors import AlreadyExistsError, InvalidArgumentError, UnavailableError
from repoagent.testing import ModelRepo

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
QUICK = {"PYTEST_ADDOPTS": "-p no:cloudcoil"}
"""The plug-in of a package that is here for other tests would double the time that pytest takes to start."""


@dataclass(frozen=True)
class Made:
    """A package that was made, and installed into ``site``."""

    directory: Path
    site: Path

    def python(self, *arguments: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
        environment = os.environ | {"PYTHONPATH": str(self.site), "PYTHONDONTWRITEBYTECODE": "1"} | QUICK
        return subprocess.run(
            [sys.executable, *arguments], env=environment, cwd=cwd, capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """What a person gets who types ``repoagent agents new scan-weights`` and installs it."""
    place = tmp_path_factory.mktemp("new")
    made = Made(place / "repoagent-agent-scan-weights", place / "site")
    done = made.python("-m", "repoagent", "agents", "new", "scan-weights", cwd=place)
    assert done.returncode == 0, done.stderr
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-build-isolation", "--no-deps"]
    done = made.python(*pip, "--target", str(made.site), str(made.directory))
    assert done.returncode == 0, done.stderr
    return made


def test_it_is_listed(made: Made) -> None:
    lines = made.python("-m", "repoagent", "agents", "list").stdout.splitlines()
    (line,) = [line for line in lines if line.startswith("scan-weights ")]
    assert line.split() == ["scan-weights", "0.1.0", "repoagent-agent-scan-weights", "package", "available"]


def test_it_can_be_inspected(made: Made) -> None:
    shown = made.python("-m", "repoagent", "agents", "inspect", "scan-weights").stdout
    assert re.search(r"^class: +ScanWeightsAgent$", shown, re.MULTILINE)
    assert "Refuse a model that lacks a file" in shown


def test_it_runs(made: Made, model_repo: ModelRepo, tmp_path: Path) -> None:
    model = model_repo.add("m", {"1/model.onnx": b"x"}, agents=[("scan-weights", {"require": "1/model.onnx"})])
    check = ["-m", "repoagent", "check", f"--workspace-directory={tmp_path / 'w'}", str(model)]
    done = made.python(*check)
    assert done.returncode == 0, done.stderr
    assert "required files: 1, all there" in done.stdout
    (model / "1" / "model.onnx").unlink()
    done = made.python(*check)
    assert done.returncode == 1
    assert "agent 'scan-weights': the model lacks 1/model.onnx" in done.stderr


def test_it_passes_its_contract_test(made: Made) -> None:
    done = made.python("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=made.directory)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d\d passed, 2 skipped in", done.stdout, re.MULTILINE)


def test_what_it_writes_is_clean_to_the_linter(made: Made) -> None:
    options = ["--isolated", "--no-cache", "--line-length=120", "."]
    for command in (["check", "--select=B,E,F,I,PIE,SIM,UP,W"], ["format", "--check"]):
        done = made.python("-m", "ruff", *command, *options, cwd=made.directory)
        assert done.returncode == 0, done.stdout


def test_no_placeholder_is_left(made: Made) -> None:
    texts = [path.read_text() for path in made.directory.rglob("*") if path.is_file()]
    assert len(texts) == len(TEMPLATES)
    assert [match for text in texts for match in re.findall(r"@[a-z]+@", text)] == []


def test_it_requires_nothing_that_somebody_else_could_register(made: Made) -> None:
    """U16: pip would install what has that name."""
    project = tomllib.loads((made.directory / "pyproject.toml").read_text())["project"]
    required = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    assert [one for one in required if one.startswith("repoagent")] == []


def test_publishing_needs_no_token(made: Made) -> None:
    release = (made.directory / ".github" / "workflows" / "release.yml").read_text()
    assert "id-token: write" in release
    assert "gh-action-pypi-publish" in release
    assert "secrets." not in release


def test_every_template_is_used() -> None:
    directory = Path(__file__).resolve().parents[2] / "repoagent" / "cli" / "templates" / "agent"
    assert {path.name for path in directory.iterdir()} == set(TEMPLATES.values())


@pytest.mark.parametrize(
    ("name", "distribution", "module", "class_name"),
    [
        ("stamp", "repoagent-agent-stamp", "repoagent_agent_stamp", "StampAgent"),
        ("scan_weights2", "repoagent-agent-scan-weights2", "repoagent_agent_scan_weights2", "ScanWeights2Agent"),
    ],
)
def test_names_follow_from_the_agents_name(name: str, distribution: str, module: str, class_name: str) -> None:
    names = Names.of(name)
    assert (names.distribution, names.module, names.class_name) == (distribution, module, class_name)


@pytest.mark.parametrize(
    "name", ["", "Stamp", "2stamp", "st amp", "st/amp", "..", "-stamp", "a--b", "a_", "a" * 41, "ä"]
)
def test_a_bad_name_is_refused_with_what_a_good_one_is(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be the name of an agent: expected lower-case letters"):
        Names.of(name)


@pytest.mark.parametrize("name", ["checksum", "verify"])
def test_the_name_of_another_agent_is_refused(name: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(agents, ["new", name, "--directory", str(tmp_path / "x")])
    assert isinstance(result.exception, AlreadyExistsError)
    assert str(result.exception) == f"'{name}' is the name of another agent; choose another one"
    assert not (tmp_path / "x").exists()


def test_the_directory_can_be_chosen(tmp_path: Path) -> None:
    result = CliRunner().invoke(agents, ["new", "stamp", "--directory", str(tmp_path / "deep" / "er")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "deep" / "er" / "repoagent_agent_stamp" / "agent.py").is_file()
    assert f"cd {tmp_path / 'deep' / 'er'}" in result.output


@pytest.mark.parametrize("kind", ["directory", "file", "dangling link"])
def test_what_exists_is_never_overwritten(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "here"
    if kind == "directory":
        target.mkdir()
    elif kind == "file":
        target.touch()
    else:
        target.symlink_to(tmp_path / "nowhere")
    with pytest.raises(AlreadyExistsError, match="here exists already and is left alone"):
        write_package(Names.of("stamp"), target)
    assert sorted(tmp_path.iterdir()) == [target]


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match=r"cannot write .*file/x: File exists"):
        write_package(Names.of("stamp"), tmp_path / "file" / "x")


def _run_lines(made: Made, workflow: str) -> list[str]:
    text = (made.directory / ".github" / "workflows" / workflow).read_text()
    return [line.partition("- run: ")[2] for line in text.splitlines() if "- run: " in line]


def test_its_workflow_installs_and_tests_it_without_a_package_index(made: Made, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    shutil.copytree(made.directory, checkout)
    (checkout / "repoagent-core").symlink_to(ROOT)
    bare = tmp_path / "bare"  # what an index would have: everything that is installed here but repoagent's packages
    bare.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "repoagent" not in entry.name and entry.suffix != ".pth":
            (bare / entry.name).symlink_to(entry)
    venv.create(tmp_path / "venv", symlinks=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "bare.pth").write_text(f"{bare}\n")
    environment = {
        "PATH": f"{tmp_path / 'venv' / 'bin'}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this name as the opposite of the flag's
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    } | QUICK
    for line in _run_lines(made, "test.yml"):
        done = subprocess.run(
            ["/bin/sh", "-c", line], cwd=checkout, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    assert "passed" in done.stdout


def test_its_workflows_and_its_readme_install_repoagent_from_a_checkout(made: Made) -> None:
    for workflow in ("test.yml", "release.yml"):
        text = (made.directory / ".github" / "workflows" / workflow).read_text()
        assert "path: repoagent-core\n" in text
        assert "'./repoagent-core[testing]'" in _run_lines(made, workflow)[0]
    readme = (made.directory / "README.md").read_text()
    assert "pip install './repoagent-core[testing]' -e '.[test]'" in readme
    assert not re.search(r"pip install repoagent", readme)
