"""``make quick`` runs the tests that mirror a path."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mirror import ROOT, covering, mirror


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("repoagent/loader/chain.py", "tests/loader/test_chain.py"),
        ("repoagent/loader", "tests/loader"),
        ("server_stub/repoagent_server/http", "server_stub/tests/http"),
        ("agents/checksum/repoagent_checksum/agent.py", "agents/checksum/tests/test_agent.py"),
    ],
)
def test_the_tests_of_a_path_have_its_place(path: str, expected: str) -> None:
    assert mirror(Path(path)) == Path(expected)


def test_a_file_is_tested_by_the_file_of_its_name_and_by_those_that_import_it() -> None:
    found = covering(Path("repoagent/loader/chain.py"))
    assert Path("tests/loader/test_chain.py") in found
    assert all((ROOT / one).is_file() for one in found)
    assert Path("tests/test_atomic_file.py") in covering(Path("repoagent/atomic_file.py"))


def test_a_file_without_tests_of_its_own_has_those_of_its_folder() -> None:
    found = covering(Path("capi/repoagent_capi/parameters.py"))
    assert Path("capi/tests/test_embedding.py") in found
    assert {one.parent for one in found} == {Path("capi/tests")}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "name what was changed"),
        (["docs/agents.md"], "is not a file or folder of the product"),
        (["repoagent/no_such_module.py"], "nothing mirrors repoagent/no_such_module.py"),
    ],
)
def test_a_path_without_tests_is_an_error_that_names_it(arguments: list[str], text: str) -> None:
    done = subprocess.run([sys.executable, ROOT / "tests/mirror.py", *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert text in done.stderr
