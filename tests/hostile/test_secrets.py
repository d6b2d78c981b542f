"""T14: where plaintext lies is the operator's choice, and no core dump takes it along."""

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from repoagent.errors import InvalidArgumentError, RepoAgentError
from repoagent.storage.workspaces.workspace import WorkspaceRoot
from tests.hostile.conftest import NewCore

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


# T24: who names a file of the machine as a key does not learn whether it is there, or what is in it.

AGENTS = {
    "decrypt, identity": 'name: "decrypt" parameters { key: "identity" value: "%s" }',
    "decrypt, keyset": 'name: "decrypt" parameters { key: "keyset" value: "%s" }',
    "decrypt, JWE": 'name: "decrypt" parameters { key: "jwe_key" value: "%s" }',
    "verify": 'name: "verify" parameters { key: "public_key" value: "%s" }',
    "verify, certificate": 'name: "verify" parameters { key: "certificate" value: "%s" }',
    "license": 'name: "license" parameters { key: "license" value: "l" } parameters { key: "public_key" value: "%s" }',
    "license, token": 'name: "license" parameters { key: "url" value: "https://licenses.invalid" }'
    ' parameters { key: "token" value: "%s" }',
}
"""Each agent that takes a key, with a parameter for a reference to it."""
CONTENTS = (
    None,
    b"\xff no key",
    b"-----BEGIN CERTIFICATE-----\nQQ==\n-----END CERTIFICATE-----\n\xff",
    b"-----BEGIN PRIVATE KEY-----\nQQ==\n-----END PRIVATE KEY-----\n",
    b"# a plug-in's\nAGE-PLUGIN-NONE-1QQ",
    b"{}\xff",
)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("spelling", ["file:", "file://"])
def test_a_file_that_is_no_key_is_refused_like_one_that_is_not_there(
    repository: Path, new_core: NewCore, tmp_path: Path, agent: str, spelling: str
) -> None:
    model = repository / "m"
    (model / "1").mkdir(parents=True)
    path = tmp_path / "secret"
    entry = AGENTS[agent] % f"{spelling}{path}"
    (model / "config.pbtxt").write_text(f'backend: "identity" model_repository_agents {{ agents [{{ {entry} }}] }}')
    core = new_core()
    texts = set()
    for content in CONTENTS:
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(RepoAgentError) as raised:
            core.load("m")
        texts.add(str(raised.value))
    assert len(texts) == 1
    assert f"there is no usable file for the key reference file:{path}; the log has the reason" in texts.pop()
