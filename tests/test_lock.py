"""requirements.lock: everything that a server needs, each with digests, in the versions that the tests run with."""

import re
import runpy
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[1]
ENTRY: Final = re.compile(
    r"^([A-Za-z0-9._-]+)==(\S+)(?: ; [^\\\n]+)? \\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n?)+", re.MULTILINE
)


@pytest.fixture(scope="module")
def locked() -> dict[str, str]:
    """Name -> version of each entry that has digests."""
    text = (ROOT / "requirements.lock").read_text()
    entries = {str(canonicalize_name(match[1])): match[2] for match in ENTRY.finditer(text)}
    assert len(entries) == len([line for line in text.splitlines() if re.match("[A-Za-z0-9]", line)])
    return entries


def test_every_requirement_is_locked_in_a_version_that_it_takes(locked: dict[str, str]) -> None:
    closure = runpy.run_path(str(ROOT / ".ci" / "closure.py"))["requirements"]()
    wanted = [Requirement(text) for text in closure]
    assert [str(each) for each in wanted if canonicalize_name(each.name) not in locked] == []
    assert [str(each) for each in wanted if locked[canonicalize_name(each.name)] not in each.specifier] == []


def test_the_versions_are_those_of_the_constraints(locked: dict[str, str]) -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line and line[0] != "#"]
    constraints = {
        str(canonicalize_name(name)): version for name, _, version in (line.partition("==") for line in lines)
    }
    other = {name: version for name, version in locked.items() if constraints.get(name, version) != version}
    assert other == {}


def test_it_names_no_place_to_download_from() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert not re.search(r"://|--(extra-)?index-url|--find-links|@ ", text)


@pytest.mark.parametrize(
    ("file", "environment"),
    [("constraints.txt", ""), ("requirements.lock", ""), ("docs/site/requirements.txt", ".venvs/docs")],
)
def test_what_is_pinned_runs_on_the_oldest_python(file: str, environment: str) -> None:
    """Debian 12 has 3.11.2: a pin that needs a later 3.11 installs on this machine, and not there."""
    pinned = {match[1].lower() for match in re.finditer(r"(?m)^([A-Za-z0-9._-]+)==", (ROOT / file).read_text())}
    folders = (
        [str(path) for path in (ROOT / environment).glob("lib/python*/site-packages")] if environment else sys.path
    )
    needed = {one.name: one.metadata.get_all("Requires-Python") or [] for one in distributions(path=folders)}
    assert pinned
    newer = {name for name, stated in needed.items() for python in stated if "3.11.0" not in SpecifierSet(python)}
    assert {name for name in newer if name.lower() in pinned} == set()
