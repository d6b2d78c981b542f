"""An owner of a model, a client, a full disk at the worst moment: none of them makes the audit log say less or more."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from repoagent.audit import AuditError
from repoagent.audit.lines import BrokenChain, canonical, verify
from repoagent.audit.log import AuditLog
from repoagent.errors import InvalidArgumentError, RepoAgentError, UnavailableError
from tests.hostile.conftest import SECRET, NewCore

CONFIG: Final = 'backend: "identity"\nmax_batch_size: 0\ninput { name: "INPUT0" data_type: TYPE_INT32 dims: [-1] }\n'
CONFIG_REST: Final = 'output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [-1] }\n'
FORGED: Final = '"}}\n{"event":"load","result":"loaded","seq":2,"v":1}\n'
AGENT: Final = """
from pathlib import Path
from repoagent.api import Agent
class Hostile(Agent):
    api_version = 1
    def load(self, model):
        what = dict(model.parameters.items())
        if "key" in what:
            model.key(what["key"])
        forged = what.get("text", "")
        model.report(digests={forged: forged}, note=forged, signer=forged)
        if "raise" in what:
            raise RuntimeError(forged)
"""


class Gap:
    """An audit log that cannot record some events."""

    def __init__(self, log: AuditLog, missing: tuple[str, str]) -> None:
        self._log = log
        self._missing = missing

    def demand(self, event: str, result: str, *more: Any) -> None:
        if (event, result) == self._missing:
            raise AuditError("the audit log cannot be written")
        self._log.demand(event, result, *more)

    def record(self, *what: Any) -> None:
        self._log.record(*what)

    def note(self, *what: Any) -> None:
        self._log.note(*what)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


@pytest.fixture
def log(path: Path) -> Iterator[AuditLog]:
    log = AuditLog(path, sync=False)
    yield log
    log.close()


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    folder = tmp_path / "agents"
    (folder / "hostile").mkdir(parents=True)
    (folder / "hostile" / "agent.py").write_text(AGENT)
    return folder


def model(repository: Path, name: str, **parameters: str) -> None:
    (repository / name / "1").mkdir(parents=True, exist_ok=True)
    entries = " ".join(f"parameters {{ key: {json.dumps(k)} value: {json.dumps(v)} }}" for k, v in parameters.items())
    chain = f'model_repository_agents {{ agents [ {{ name: "hostile" {entries} }} ] }}\n' if parameters else ""
    (repository / name / "config.pbtxt").write_text(CONFIG + CONFIG_REST + chain)


def test_no_text_of_an_owner_or_a_client_forges_a_line(
    new_core: NewCore, repository: Path, agents: Path, log: AuditLog, path: Path
) -> None:
    model(repository, "forger", text=FORGED)
    model(repository, "raiser", text=FORGED * 1000, **{"raise": "yes"})
    core = new_core(audit=log, repoagent_directory=agents)
    core.load("forger")
    for name in ("raiser", FORGED, "x" * 10_000_000, "\x00\x1b[2J", "\udc80"):
        with pytest.raises(RepoAgentError):
            core.load(name)
    with pytest.raises(RepoAgentError):
        core.load(FORGED, config=FORGED)
    log.close()
    data = path.read_bytes()
    assert all(byte == 10 or 32 <= byte < 127 for byte in data)
    assert max(map(len, data.splitlines())) < 100_000
    assert verify([path]).head.seq == len(data.splitlines())
    loaded = [one for one in map(json.loads, data.splitlines()) if (one["event"], one["result"]) == ("load", "loaded")]
    assert [one["what"]["model"] for one in loaded] == ["forger"]


def test_a_key_in_the_place_of_a_reference_is_not_in_the_log(
    new_core: NewCore, repository: Path, agents: Path, log: AuditLog, path: Path
) -> None:
    secret = SECRET.decode()
    for number, key in enumerate((secret, f"env:{secret}", f"exec:echo {secret}", f"file:{secret}", f"{secret}:x")):
        model(repository, f"m{number}", key=key)
    core = new_core(audit=log, repoagent_directory=agents)
    for number in range(5):
        with pytest.raises(RepoAgentError):
            core.load(f"m{number}")
    log.close()
    assert path.read_text().count('"event":"key"') == 5
    assert secret not in path.read_text()


@pytest.mark.parametrize("moment", [("load", "started"), ("load", "loaded")])
def test_a_disk_that_is_full_at_any_moment_of_a_load_leaves_what_was_served(
    new_core: NewCore, repository: Path, workspace: Path, agents: Path, log: AuditLog, moment: tuple[str, str]
) -> None:
    gap = Gap(log, ("", ""))
    model(repository, "m", text="one")
    core = new_core(audit=gap, repoagent_directory=agents)
    core.load("m")
    gap._missing = moment
    model(repository, "m", text="two")
    with pytest.raises(UnavailableError, match="the audit log cannot be written"):
        core.load("m")
    assert core.model_ready("m")
    model(repository, "other", text="one")
    with pytest.raises(UnavailableError, match="the audit log cannot be written"):
        core.load("other")
    assert not core.model_ready("other")
    gap._missing = ("", "")
    core.load("m")
    core.load("other")
    assert core.model_ready("other")


@pytest.mark.parametrize("head", ["9" * 90, "9" * 20 + " " + "0" * 64, "1 " + "z" * 64, "\x00" * 96, "-1 " + "0" * 64])
def test_a_note_of_the_head_that_makes_no_sense_is_not_believed(path: Path, head: str) -> None:
    path.with_name("audit.log.head").write_text(head)
    log = AuditLog(path, sync=False)
    log.record("load", "loaded", {})
    log.close()
    assert verify([path]).first == 1


def test_a_link_in_the_place_of_the_lock_is_not_followed(path: Path, outside: Path) -> None:
    path.with_name("audit.log.head").symlink_to(outside)
    with pytest.raises(UnavailableError, match="cannot be opened"):
        AuditLog(path, sync=False)
    assert outside.read_bytes() == SECRET


def test_a_model_that_could_not_be_recorded_is_loaded_on_demand_once_it_can_be(
    new_core: NewCore, repository: Path, log: AuditLog
) -> None:
    gap = Gap(log, ("load", "started"))
    model(repository, "m")
    core = new_core(audit=gap, on_demand=True)
    for _ in range(2):
        with pytest.raises(UnavailableError, match=r"the audit log cannot be written$"), core.lease("m"):
            pass
    gap._missing = ("", "")
    with core.lease("m"):
        assert core.model_ready("m")


def test_the_versions_that_serve_are_there(new_core: NewCore, repository: Path, log: AuditLog, path: Path) -> None:
    model(repository, "m")
    (repository / "m" / "7").mkdir()
    config = repository / "m" / "config.pbtxt"
    config.write_text(config.read_text() + "version_policy { all {} }\n")
    new_core(audit=log).load("m")
    loaded = [one for one in map(json.loads, path.read_text().splitlines()) if one["result"] == "loaded"]
    assert loaded[0]["what"]["versions"] == [1, 7]


def test_denied_requests_without_a_line_are_counted_though_nothing_follows_them(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is killed afterwards must have written how many there were."""
    monkeypatch.setattr("repoagent.audit.log._PER_SECOND", 0)
    written = threading.Event()

    class Noting(AuditLog):
        def _write_note(self, item: Any) -> None:
            super()._write_note(item)
            written.set()

    log = Noting(path, sync=False)
    for _ in range(500):
        log.note("denied", "denied", {"route": "GET /v2"})
    assert written.wait(30), "what was left out is not counted"
    assert sum(json.loads(line)["what"]["notes"] for line in path.read_text().splitlines()) == 500
    log.close()


def test_a_flood_of_denied_requests_has_few_lines_that_count_it(log: AuditLog, path: Path) -> None:
    """Not one for each line that is written: that would double what strangers may write."""
    for _ in range(20_000):
        log.note("denied", "denied", {"route": "GET /v2"})
    log.close()
    results = [json.loads(line)["result"] for line in path.read_text().splitlines()]
    assert 1 <= results.count("suppressed") <= 1 + results.count("denied") // 10


# A file that is no log, a log with two names, a line that nobody wrote: each is refused, and nothing is lost.

KEY: Final = b"k" * 32


@pytest.mark.parametrize("text", [b"notes of somebody, without a line feed", b'{"events":1}', b"\0\0notes"])
def test_a_file_of_somebody_else_without_a_line_feed_is_left_as_it_is(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    with pytest.raises(InvalidArgumentError, match="does not end with a line of an audit log"):
        AuditLog(path)
    assert path.read_bytes() == text


@pytest.mark.parametrize("torn", [b"{", b'{"event":"server","prev"', b"\0\0\0\0"])
def test_the_beginning_of_the_very_first_line_is_taken_up(path: Path, torn: bytes) -> None:
    path.write_bytes(torn)
    AuditLog(path).close()
    assert verify([path]).head.seq == 1


@pytest.mark.parametrize("name_again", [os.symlink, os.link])
def test_a_log_under_two_names_has_one_writer(path: Path, name_again: Callable[[Path, Path], None]) -> None:
    first = AuditLog(path)
    first.record("server", "started", {})
    other = path.with_name("other.log")
    name_again(path, other)
    with pytest.raises(UnavailableError, match="in use by another server"):
        AuditLog(other)
    first.record("server", "stopped", {})
    first.close()
    assert verify([path]).head.seq == 2
    AuditLog(other).close()


def test_a_log_that_rotates_is_still_the_only_writer(path: Path) -> None:
    first = AuditLog(path, largest=1)
    first.record("server", "started", {})
    first.record("server", "stopped", {})
    other = path.with_name("other.log")
    other.symlink_to(path)
    with pytest.raises(UnavailableError, match="in use by another server"):
        AuditLog(other)
    first.close()


@pytest.mark.parametrize("mac", ["\ud800", "\xe9" * 64, ""])
def test_a_forged_hmac_that_is_not_text_is_a_broken_line(path: Path, mac: str) -> None:
    path.write_bytes(canonical({"v": 1, "seq": 1, "prev": "0" * 64, "event": "load", "mac": mac}) + b"\n")
    with pytest.raises(BrokenChain, match="HMAC"):
        verify([path], key=KEY)


def test_a_file_in_the_way_of_a_rotation_is_neither_taken_nor_removed(path: Path) -> None:
    other = path.with_name("audit.log.new")
    other.write_text("notes of somebody\n")
    log = AuditLog(path, largest=1)
    log.record("server", "started", {})
    log.record("server", "stopped", {})
    log.close()
    assert other.read_text() == "notes of somebody\n"
    assert verify([path]).head.seq == 2


def test_the_log_of_another_server_is_not_removed_by_a_rotation(path: Path) -> None:
    other = AuditLog(path.with_name("audit.log.new"))
    log = AuditLog(path, largest=1)
    log.record("server", "started", {})
    log.record("server", "stopped", {})
    log.close()
    other.record("server", "started", {})
    other.close()
    assert verify([path.with_name("audit.log.new")]).head.seq == 1
    assert verify([path]).head.seq == 2
