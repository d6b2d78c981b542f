"""Pinning an agent's code: the digest of its RECORD, against packages that pip really installed."""

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from repoagent.loader.discovery import AgentInfo
from repoagent.loader.policy.allowed_agents import code_digest, objection
from repoagent.loader.policy.rules import AllowedAgent

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "agents" / "sizelimit"
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


@pytest.mark.slow
def test_the_digest_is_that_of_the_record(site: Path) -> None:
    (record,) = site.glob("*.dist-info/RECORD")
    digest = hashlib.sha256(record.read_bytes()).hexdigest()
    assert code_digest(installed()) == digest
    assert objection(installed(), [AllowedAgent("sizelimit", record_sha256=digest)]) is None


def test_another_digest_is_refused(site: Path) -> None:
    reason = objection(installed(), [AllowedAgent("sizelimit", record_sha256="0" * 64)])
    assert reason is not None
    assert "the policy wants 0000" in reason


def test_code_that_was_changed_after_the_installation_is_refused(site: Path) -> None:
    module = site / "repoagent_sizelimit" / "__init__.py"
    original = module.read_bytes()
    digest = code_digest(installed())
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
        "checksum", "0.1.0", "repoagent-checksum", "package", "repoagent_checksum:ChecksumAgent", "available"
    )
    with pytest.raises(ValueError, match="editable"):
        code_digest(info)


def test_an_agent_of_a_directory_is_pinned_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text("# code")
    info = AgentInfo("mine", None, None, "directory", str(file), "available")
    digest = hashlib.sha256(b"# code").hexdigest()
    assert objection(info, [AllowedAgent("mine", record_sha256=digest)]) is None
