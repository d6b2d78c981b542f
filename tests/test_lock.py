"""requirements.lock: everything that a server needs, each with digests, in the versions that the tests run with."""

import re
import runpy
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
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
