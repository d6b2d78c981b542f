"""T14: where plaintext lies is the operator's choice, and no core dump takes it along."""

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from repoagent.errors import InvalidArgumentError
from repoagent.storage.workspaces.workspace import WorkspaceRoot

_PROGRAM = """
import ctypes, resource, sys
from pathlib import Path
from repoagent.storage.workspaces.workspace import WorkspaceRoot

def state():
    return resource.getrlimit(resource.RLIMIT_CORE)[0] == 0, ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 0

work, allowed = Path(sys.argv[1]), sys.argv[2] == "allowed"
resource.setrlimit(resource.RLIMIT_CORE, (1, resource.getrlimit(resource.RLIMIT_CORE)[1]))
with WorkspaceRoot(work, allow_swap=True, allow_core_dumps=allowed) as root:
    with root.new("plain") as plain:
        plain.directory("a")
    before = state()
    with root.new("secret") as secret:
        secret.directory("a", confidential=True)
        print(before, state(), Path("/proc/self/fd").is_dir(), len(Path("/proc/self/mountinfo").read_text()) > 0)
"""


@pytest.mark.parametrize(("given", "expected"), [("no", "(True, True)"), ("allowed", "(False, False)")])
def test_no_core_dump_is_written_of_a_process_with_plaintext(given: str, expected: str, tmp_path: Path) -> None:
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("core dumps are switched off here for good")
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "work"), given], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"(False, False) {expected} True True"


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        yield Path(place)


def test_another_user_took_the_place_and_the_operator_names_another(memory: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    taken = memory / f"repoagent-{os.geteuid()}"
    taken.mkdir()
    os.chown(taken, 12345, -1)
    work = tmp_path / "work"
    with WorkspaceRoot(work, confidential_dir=memory, allow_swap=True) as root, root.new("m") as workspace:  # noqa: SIM117
        with pytest.raises(InvalidArgumentError, match="belongs to user 12345"):
            workspace.directory("a", confidential=True)
    other = memory / "other"
    other.mkdir()
    with WorkspaceRoot(work, confidential_dir=other, allow_swap=True) as root, root.new("m") as workspace:
        assert workspace.directory("a", confidential=True).is_relative_to(other)
