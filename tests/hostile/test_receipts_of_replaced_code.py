"""T13: a receipt states the RECORD of an agent only where that lists the code which runs."""

import base64
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from repoagent.loader import attesting
from repoagent.loader.attesting import Attesting, AttestSettings
from repoagent.loader.discovery import AgentRegistry
from tests.hostile.test_receipts_of_what_was_not_judged import Recorder

PACKAGE = "repoagent_t13_receipts"
CODE = """
from repoagent.api import Agent

class Judge(Agent):
    api_version = 1

    def load(self, model):
        {}
"""
GOOD, BAD = CODE.format("raise ValueError"), CODE.format("pass")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An agent as an installer leaves it, in a process that begins afterwards."""
    path = tmp_path / "site"
    install(path, GOOD)
    monkeypatch.syspath_prepend(str(path))
    begin(monkeypatch)
    attesting._code_of.cache_clear()
    yield path
    sys.modules.pop(PACKAGE, None)


def begin(monkeypatch: pytest.MonkeyPatch) -> None:
    time.sleep(0.02)  # more than a step of the clock of the filesystem
    began = time.time_ns()
    monkeypatch.setattr(attesting, "_start_of_process", lambda: began)
    time.sleep(0.02)


def install(site: Path, code: str) -> str:
    """Write the package and its RECORD, and return the digest of that."""
    info = site / f"{PACKAGE}-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    files = {
        f"{PACKAGE}.py": code,
        f"{info.name}/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1\n",
        f"{info.name}/entry_points.txt": f"[repoagent.agents]\njudge = {PACKAGE}:Judge\n",
    }
    rows = [f"{info.name}/RECORD,,"]
    for name, text in files.items():
        (site / name).write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(text)}")
    record = "\n".join(rows).encode()
    (info / "RECORD").write_bytes(record)
    return hashlib.sha256(record).hexdigest()


def stated(registry: AgentRegistry) -> str | None:
    receipts = Attesting(Recorder(), AttestSettings(key=""), registry, lambda _model: {})
    code = receipts.code("judge")
    assert (code["distribution"], code["version"]) == (PACKAGE, "1")
    return code.get("record_sha256")


def test_what_runs_as_it_was_installed_is_stated(site: Path) -> None:
    record = (site / f"{PACKAGE}-1.dist-info" / "RECORD").read_bytes()
    assert stated(AgentRegistry(None)) == hashlib.sha256(record).hexdigest()


@pytest.mark.parametrize("asked_before", [False, True])
def test_code_in_memory_is_not_stated_to_be_what_replaced_it(site: Path, *, asked_before: bool) -> None:
    registry = AgentRegistry(None)
    registry.load("judge")
    if asked_before:
        assert stated(registry)
    install(site, BAD)
    assert stated(registry) is None


def test_a_file_that_is_not_that_of_the_record_is_not_stated(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / f"{PACKAGE}.py").write_text(BAD)
    begin(monkeypatch)
    assert stated(AgentRegistry(None)) is None


def test_the_record_of_an_editable_installation_lists_no_code_and_is_not_stated(site: Path) -> None:
    origin = {"url": site.as_uri(), "dir_info": {"editable": True}}
    (site / f"{PACKAGE}-1.dist-info" / "direct_url.json").write_text(json.dumps(origin))
    assert stated(AgentRegistry(None)) is None


def test_a_record_that_cannot_be_read_is_not_stated_and_fails_no_load(site: Path) -> None:
    (site / f"{PACKAGE}-1.dist-info" / "RECORD").write_bytes(b"\xff\x00,sha999=x,1\n")
    assert stated(AgentRegistry(None)) is None


def test_what_was_imported_before_receipts_were_counts_as_old() -> None:
    """The plug-in of a package is imported when commands are looked for, long before the first load."""
    code = """if True:
        import time
        before = time.time_ns()
        time.sleep(0.2)
        from repoagent.loader import attesting
        began = attesting._start_of_process()
        print(began < before, before - began < 60e9)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"
