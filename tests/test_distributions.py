"""Every Python distribution builds, says who it is, and works when it is installed from files by its name."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import readme_renderer.markdown
from packaging.metadata import Metadata
from packaging.requirements import Requirement

TREE = Path(__file__).resolve().parents[1]
SOURCES = [
    TREE,
    TREE / "server_stub",
    TREE / "llm",
    TREE / "deploy" / "ray",
    TREE / "contrib" / "vllm",
    *sorted(path.parent for path in TREE.glob("agents/*/pyproject.toml")),
]
NEEDS_MORE = ("repoagent-ray", "repoagent-vllm")
"""Distributions whose requirements are not in the development environment: they build; `make ray` runs the first."""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a wheel and an sdist of each."""
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target)]

    def build(source: Path) -> None:
        subprocess.run(command, cwd=source, check=True, capture_output=True)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(build, SOURCES))
    return target


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all of them are installed from these wheels, by name, with no index in reach."""
    target = tmp_path_factory.mktemp("installed")
    names = [metadata.name for _, metadata in _wheels(built)]
    offline = ["--no-index", "--find-links", str(built), "--no-deps", "--target", str(target), "--quiet"]
    subprocess.run([sys.executable, "-m", "pip", "install", *offline, *names], check=True, capture_output=True)
    return target


def _wheels(built: Path) -> Iterator[tuple[Path, Metadata]]:
    for wheel in sorted(built.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            yield wheel, Metadata.from_email(archive.read(name), validate=True)


def _sdists(built: Path) -> Iterator[tuple[Path, Metadata]]:
    for sdist in sorted(built.glob("*.tar.gz")):
        with tarfile.open(sdist) as archive:
            file = archive.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/PKG-INFO")
            assert file is not None
            yield sdist, Metadata.from_email(file.read(), validate=True)


def run(installed: Path, code: str, *arguments: str) -> str:
    """Run ``code`` with the installed packages before those of this environment."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_there_is_a_wheel_and_an_sdist_of_each(built: Path) -> None:
    assert len(list(built.glob("*.whl"))) == len(list(built.glob("*.tar.gz"))) == len(SOURCES)


def test_the_metadata_is_valid_and_has_a_readme_and_a_licence(built: Path) -> None:
    for wheel, metadata in _wheels(built):
        assert metadata.name.startswith("repoagent-"), wheel.name
        assert metadata.summary, wheel.name
        assert len(metadata.description or "") > 200, wheel.name
        assert metadata.description_content_type == "text/markdown", wheel.name
        assert str(metadata.license_expression) == "Apache-2.0", wheel.name


def test_each_description_renders_on_an_index_and_its_links_lead_somewhere(built: Path) -> None:
    """An index has no files of the repository: what is not an address or a place of the same page is broken."""
    for name, metadata in [*_wheels(built), *_sdists(built)]:
        page = readme_renderer.markdown.render(metadata.description or "")
        assert page is not None, name
        places = {f"#{place}" for place in re.findall(r'<h[1-6] id="([^"]+)"', page)}
        links = re.findall(r'(?:href|src)="([^"]*)"', page)
        assert [link for link in links if not link.startswith("https://") and link not in places] == [], name
        assert len(places) > 0, name


def test_each_requires_the_core_of_its_own_release(built: Path) -> None:
    versions = {metadata.name: str(metadata.version) for _, metadata in _wheels(built)}
    for wheel, metadata in _wheels(built):
        for requirement in metadata.requires_dist or ():
            if requirement.name in versions and requirement.name != metadata.name:
                assert Requirement(str(requirement)).specifier.contains(versions[requirement.name]), wheel.name
        assert "repoagent" not in {requirement.name for requirement in metadata.requires_dist or ()}, wheel.name


def test_types_and_every_module_are_in_the_wheel(built: Path) -> None:
    for wheel, _ in _wheels(built):
        with zipfile.ZipFile(wheel) as archive:
            names = set(archive.namelist())
        package = next(name.partition("/")[0] for name in names if name.endswith("/py.typed"))
        (source,) = [path / package for path in SOURCES if (path / package / "py.typed").exists()]
        modules = {str(path.relative_to(source.parent)) for path in source.rglob("*.py")}
        assert modules <= names, wheel.name


def test_no_private_key_is_in_an_sdist(built: Path) -> None:
    for sdist in built.glob("*.tar.gz"):
        with tarfile.open(sdist) as archive:
            for member in archive:
                file = archive.extractfile(member)
                content = file.read() if file is not None else b""
                assert not re.search(rb"^-----BEGIN [A-Z ]*PRIVATE KEY|^AGE-SECRET-KEY-1", content, re.M), member.name


def test_the_program_runs_and_finds_every_agent_and_command(installed: Path) -> None:
    origin = run(installed, "import repoagent, repoagent_server; print(repoagent.__file__, repoagent_server.__file__)")
    assert all(path.startswith(str(installed)) for path in origin.split())
    program = "import sys; from repoagent.cli.main import main; sys.argv[0] = 'repoagent'; main()"
    agents = run(installed, program, "agents", "list")
    for source in SOURCES:
        if "repoagent.agents" in (source / "pyproject.toml").read_text():
            assert f"\n{source.name} " in f"\n{agents}"
    assert "serve" in run(installed, program, "--help")


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own, with the packages of others that this one has, and nothing of this project."""
    root = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(root, with_pip=False, symlinks=True)
    (packages,) = root.glob("lib/python3*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not re.match(r"_*(editable|repoagent)", path.name, re.IGNORECASE):
            (packages / path.name).symlink_to(path)
    return root


@pytest.fixture(scope="module")
def from_index(built: Path, empty: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment after everything has been installed from a local index by name."""
    index = tmp_path_factory.mktemp("index") / "simple"
    for wheel, metadata in _wheels(built):
        page = index / metadata.name / "index.html"
        page.parent.mkdir(parents=True)
        page.write_text(f'<a href="{wheel.as_uri()}">{wheel.name}</a>')
    names = [metadata.name for _, metadata in _wheels(built) if metadata.name not in ("repoagent-core", *NEEDS_MORE)]
    command = [str(empty / "bin" / "python"), "-m", "pip", "--isolated", "install", "--quiet", "--no-input"]
    done = subprocess.run(
        [*command, f"--index-url={index.as_uri()}", *names], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return empty


def test_an_empty_environment_takes_all_of_them_by_name_with_the_core_as_requirement(from_index: Path) -> None:
    listed = subprocess.run(
        [str(from_index / "bin" / "repoagent"), "agents", "list"], capture_output=True, text=True, check=True
    )
    for source in SOURCES:
        if "repoagent.agents" in (source / "pyproject.toml").read_text():
            assert f"\n{source.name} " in f"\n{listed.stdout}"
    code = "import repoagent, repoagent_server; print(repoagent.__file__, repoagent_server.__file__)"
    origin = subprocess.run(
        [str(from_index / "bin/python"), "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert all(path.startswith(str(from_index)) for path in origin.stdout.split())


@pytest.mark.parametrize("program", ["repoagent", "tritonserver"])
def test_the_programs_start_from_there(from_index: Path, program: str) -> None:
    done = subprocess.run([str(from_index / "bin" / program), "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"Usage: {program} ")
    assert (from_index / "bin" / "repoagent-sagemaker").exists()
