"""What ``make test`` makes of tests that fail beside others: a fault, or chance."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SUITE = """
import os
from pathlib import Path
import pytest

BESIDE = "PYTEST_XDIST_WORKER" in os.environ

@pytest.fixture
def torn():
    yield
    assert not BESIDE, "in pieces"

def test_sound(): pass
def test_broken(): assert False, "a fault"
def test_torn(torn): pass
@pytest.mark.parametrize("number", range({chances}))
def test_chance(number): assert not BESIDE, f"chance {{number}}"
def test_crash(): BESIDE and os._exit(3)
def test_always_crashes(): os._exit(3)
"""


def run(directory: Path, chances: int, *arguments: str) -> tuple[int, str]:
    (directory / "test_some.py").write_text(SUITE.format(chances=chances))
    (directory / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.unsteady", *arguments]
    quick = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist -p no:cacheprovider"}
    ended = subprocess.run(
        command, cwd=directory, env={"PYTHONPATH": str(ROOT)} | quick, capture_output=True, text=True, timeout=120
    )
    return ended.returncode, ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chances", "chosen", "status", "closing", "printed"),
    [
        (2, "sound or chance or torn", 0, "2 passed, 3 unsteady", ["UNSTEADY test_some.py::test_torn", "chance 1"]),
        (4, "sound or chance", 1, "1 passed, 4 unsteady", ["4 tests are unsteady, 3 may be: the run fails"]),
        (0, "broken", 1, "1 failed", ["FAILED test_some.py::test_broken", "a fault"]),
        (31, "chance", 1, "31 failed", []),
        (1, "nothing", 5, "no tests ran", []),
    ],
)
def test_what_fails_beside_others_runs_once_more_alone(
    tmp_path: Path, chances: int, chosen: str, status: int, closing: str, printed: list[str]
) -> None:
    code, output = run(tmp_path, chances, "-n", "2", "-k", chosen)
    assert code == status, output
    assert output.splitlines()[-1].startswith(closing), output
    assert [text for text in printed if text not in output] == [], output


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_run(tmp_path: Path) -> None:
    """xdist 3.8 hangs where the worker that takes its place gets a file of one test."""
    code, output = run(tmp_path, 1, "-n", "2", "--max-worker-restart=0", "-k", "sound or crash")
    assert code == 1, output
    assert "died: its process ended with status 3" in output
    assert "FAILED test_some.py::test_crash" in output
    assert "once more" not in output


@pytest.mark.slow
def test_a_run_without_workers_is_believed_at_once(tmp_path: Path) -> None:
    code, output = run(tmp_path, 1, "-n", "0", "-k", "broken or chance")
    assert (code, output.splitlines()[-1].split(" in ")[0]) == (1, "1 failed, 1 passed, 4 deselected"), output
