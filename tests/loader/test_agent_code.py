"""Pinning an agent's code: the digest of its RECORD, against packages that pip really installed."""

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from repoagent.loader.agent_code import code_of
from repoagent.loader.discovery import AgentInfo
from repoagent.loader.policy.planner import objection
from repoagent.loader.policy.rules import AllowedAgent

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "agents" / "sizelimit"
NAME = "repoagent-example-sizelimit"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory of packages with the example agent in it, installed as a wheel, on ``sys.path``."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--disable-pip-version-check", "--target", str(target), str(EXAMPLE)], check=True)
    sys.path.insert(0, str(target))
    yield target
    sys.path.remove(str(target))


def installed() -> AgentInfo:
    return AgentInfo("sizelimit", "0.1.0", NAME, "package", "repoagent_sizelimit:SizeLimitAgent", "available")


def test_the_digest_is_that_of_the_record(site: Path) -> None:
    (record,) = site.glob("*.dist-info/RECORD")
    digest = hashlib.sha256(record.read_bytes()).hexdigest()
    assert code_of(installed()).digest == digest
    assert objection(installed(), [AllowedAgent("sizelimit", record_sha256=digest)]) is None


def test_another_digest_is_refused(site: Path) -> None:
    reason = objection(installed(), [AllowedAgent("sizelimit", record_sha256="0" * 64)])
    assert reason is not None
    assert "the policy wants 0000" in reason


def test_code_that_was_changed_after_the_installation_is_refused(site: Path) -> None:
    module = site / "repoagent_sizelimit" / "__init__.py"
    original = module.read_bytes()
    digest = code_of(installed()).digest
    module.write_bytes(original + b"# one more line\n")
    try:
        assert "was changed after it was installed" in str(
            objection(installed(), [AllowedAgent("sizelimit", record_sha256=digest)])
        )
        module.unlink()
        assert "is missing" in str(objection(installed(), [AllowedAgent("sizelimit", record_sha256=digest)]))
    finally:
        module.write_bytes(original)


def test_an_editable_installation_cannot_be_pinned() -> None:
    info = AgentInfo(
        "checksum", "0.1.0", "repoagent-checksum", "package", "repoagent_checksum.agent:ChecksumAgent", "available"
    )
    with pytest.raises(ValueError, match="editable"):
        code_of(info)


def test_an_agent_of_a_directory_is_pinned_by_all_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("agent.py", "helper.py", "data/words.txt"):
        (tmp_path / name).write_text(f"# {name}")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "helper.cpython-311.pyc").write_bytes(b"compiled")
    info = AgentInfo("mine", None, None, "directory", str(tmp_path / "agent.py"), "available")
    listed = "find . -type f ! -path '*/__pycache__/*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"
    printed = subprocess.run(["sh", "-c", listed], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert objection(info, [AllowedAgent("mine", record_sha256=printed.split()[0])]) is None
    (tmp_path / "helper.py").write_text("# another")
    assert "the policy wants" in str(objection(info, [AllowedAgent("mine", record_sha256=printed.split()[0])]))


def test_an_agent_of_a_directory_with_a_link_cannot_be_pinned(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("# code")
    (tmp_path / "helper.py").symlink_to("/etc/hostname")
    info = AgentInfo("mine", None, None, "directory", str(tmp_path / "agent.py"), "available")
    assert "'helper.py' is a link" in str(objection(info, [AllowedAgent("mine", record_sha256="0" * 64)]))
