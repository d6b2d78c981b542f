"""The log of a server: restarts, rotation, locks, failures, threads."""

import fcntl
import logging
import os
import resource
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from repoagent.audit import Actor, Audit, acting_as
from repoagent.audit.lines import verify
from repoagent.audit.log import AuditLog
from repoagent.audit.sink import AuditError, What
from repoagent.errors import InvalidArgumentError, RepoAgentError, UnavailableError
from tests.audit.conftest import NewLog, documents
from tests.descriptors import no_descriptors


@contextmanager
def no_room(path: Path, more: int = 0) -> Iterator[None]:
    """Files of this process can grow no further than ``more`` bytes beyond what ``path`` has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_line_has_who_and_what(path: Path, new_log: NewLog) -> None:
    log = new_log(clock=lambda: 0.5)
    who = {"by": "client", "client": "alice", "via": "http", "request": "r-1", "address": "10.0.0.7:51234"}
    with acting_as(Actor("client", "alice", "http", "r-1", "10.0.0.7:51234")):
        log.record("load", "loaded", {"model": "m"})
    log.demand("unload", "unloaded", {"model": "m"})
    first, second = documents(path)
    assert first["who"] == who
    assert first["time"] == "1970-01-01T00:00:00.500000Z"
    assert second["who"] == {"by": "operator"}
    assert (log.lines, log.failures, log.head.seq) == (2, 0, 2)


def test_the_chain_goes_on_after_a_restart(path: Path, new_log: NewLog) -> None:
    for _ in range(3):
        log = new_log()
        log.record("load", "loaded", {})
        log.close()
    assert verify([path]).head.seq == 3


def test_a_torn_line_is_removed_and_kept_in_the_next_one(path: Path, new_log: NewLog) -> None:
    log = new_log()
    log.record("load", "loaded", {})
    log.record("load", "loaded", {})
    log.close()
    whole = path.read_bytes()
    torn = whole[:-30].splitlines()[-1]
    path.write_bytes(whole[:-30])
    log = new_log()
    log.record("load", "loaded", {})
    _, second, third, _ = documents(path)
    assert (second["event"], second["result"], second["what"]["bytes"]) == ("audit", "torn", len(torn))
    assert second["what"]["text"] == torn.decode()
    assert (third["event"], third["result"]) == ("audit", "differs")  # the last server had noted line 2
    assert verify([path]).head.seq == 4


def test_lines_that_went_missing_while_no_server_ran_are_noted(path: Path, new_log: NewLog) -> None:
    log = new_log()
    for _ in range(3):
        log.record("load", "loaded", {})
    log.close()
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:1]))
    new_log()
    assert documents(path)[1]["result"] == "differs"


def test_a_chain_goes_on_in_a_new_file_also_if_no_server_ran_when_it_was_renamed(path: Path, new_log: NewLog) -> None:
    log = new_log()
    log.record("load", "loaded", {})
    log.close()
    path.rename(path.with_name("audit.log.1"))
    new_log().record("load", "loaded", {})
    assert verify([path.with_name("audit.log.1"), path]).head.seq == 2


@pytest.mark.parametrize("content", [b"hello\n", b"{}\n", b"x" * 2_000_000 + b"\n", b"\n"])
def test_a_file_of_something_else_is_left_alone(path: Path, new_log: NewLog, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=r"does not end with a line of an audit log.*move it away"):
        new_log()
    assert path.read_bytes() == content


@pytest.mark.parametrize("name", ["/dev/full", "/dev/null"])
def test_a_device_is_not_a_log(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="must be a file"):
        AuditLog(Path(name))
    assert not Path(f"{name}.head").exists()


def test_a_pipe_is_not_a_log(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidArgumentError, match="must be a file"):
        AuditLog(tmp_path / "pipe")


def test_a_directory_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="cannot be opened: No such file"):
        AuditLog(tmp_path / "missing" / "audit.log")


def test_two_servers_cannot_have_one_log(path: Path, new_log: NewLog) -> None:
    new_log()
    with pytest.raises(UnavailableError, match="in use by another server"):
        new_log()


def test_two_servers_cannot_have_one_log_although_it_was_renamed(path: Path, new_log: NewLog) -> None:
    new_log()
    path.rename(path.with_name("audit.log.1"))
    with pytest.raises(UnavailableError, match="in use by another server"):
        new_log()


def test_the_log_is_for_its_owner_alone(path: Path, new_log: NewLog) -> None:
    new_log()
    assert path.stat().st_mode & 0o777 == 0o600


# -- rotation -----------------------------------------------------------------------------------------------------


def test_a_renamed_file_is_followed_by_a_new_one(path: Path, new_log: NewLog) -> None:
    log = new_log()
    log.record("load", "loaded", {"model": "a"})
    former = path.with_name("audit.log.1")
    path.chmod(0o640)
    path.rename(former)
    log.record("load", "loaded", {"model": "b"})  # before the signal: still in the old file
    log.reopen()
    log.close()
    assert not path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o640
    log = new_log()
    log.record("load", "loaded", {"model": "c"})
    assert [one["what"]["model"] for one in documents(former)] == ["a", "b"]
    assert verify([path, former]).head.seq == 3


def test_reopening_a_file_that_was_not_renamed_changes_nothing(path: Path, new_log: NewLog) -> None:
    log = new_log()
    log.record("load", "loaded", {})
    log.reopen()
    log.record("load", "loaded", {})
    log.close()
    assert verify([path]).head.seq == 2


def test_a_file_that_someone_else_put_there_is_not_written_to(
    path: Path, new_log: NewLog, caplog: pytest.LogCaptureFixture
) -> None:
    log = new_log()
    log.record("load", "loaded", {})
    path.rename(path.with_name("audit.log.1"))
    path.write_text("mine\n")
    log.reopen()
    log.close()
    assert path.read_text() == "mine\n"
    assert "was put in place by something else" in caplog.text


def test_a_full_file_is_followed_by_a_new_one_and_nothing_is_overwritten(path: Path, new_log: NewLog) -> None:
    log = new_log(largest=2000)
    for number in range(40):
        log.record("load", "loaded", {"number": number})
    log.close()
    files = sorted(path.parent.glob("audit.log*"))
    files.remove(path.with_name("audit.log.head"))
    assert len(files) > 3
    assert all(file.stat().st_size < 2600 for file in files)
    assert path.with_name("audit.log.000000000001") in files
    assert verify(files).head.seq == 40
    log = new_log(largest=2000)
    log.record("load", "loaded", {})
    assert verify(sorted(set(path.parent.glob("audit.log*")) - {path.with_name("audit.log.head")})).head.seq == 41


def test_a_file_in_the_way_of_a_rotation_is_kept(path: Path, new_log: NewLog, caplog: pytest.LogCaptureFixture) -> None:
    path.with_name("audit.log.000000000001").write_text("mine")
    log = new_log(largest=500)
    for _ in range(10):
        log.record("load", "loaded", {})
    assert path.with_name("audit.log.000000000001").read_text() == "mine"
    assert verify([path]).head.seq == 10
    assert caplog.text.count("grows beyond its size") == 1


def test_a_rotation_that_fails_for_a_while_is_made_later(path: Path, new_log: NewLog) -> None:
    log = new_log(largest=500)
    while not path.stat().st_size >= 500:
        log.record("load", "loaded", {})
    with no_descriptors():
        log.record("load", "loaded", {})
        log.record("load", "loaded", {})
    assert log.failures == 0
    assert path.exists()
    for _ in range(3):
        log.record("load", "loaded", {})
    log.close()
    files = sorted(set(path.parent.iterdir()) - {path.with_name("audit.log.head")})
    assert [file.name for file in files][:2] == ["audit.log", "audit.log.000000000001"]
    assert verify(files).head.seq == log.lines
    assert path.stat().st_size < 1000


def test_a_server_that_was_killed_in_a_rotation_has_it_made_by_the_next_one(path: Path, new_log: NewLog) -> None:
    log = new_log()
    for _ in range(5):
        log.record("load", "loaded", {})
    log.close()
    former = path.with_name("audit.log.000000000001")
    os.link(path, former)
    path.with_name("audit.log.new").touch()
    log = new_log(largest=500)
    log.record("load", "loaded", {})
    log.close()
    assert path.read_bytes().count(b"\n") == 1
    assert verify([path, former]).head.seq == 6
    assert not path.with_name("audit.log.new").exists()


# -- failures -----------------------------------------------------------------------------------------------------


def test_a_full_disk_stops_what_must_be_recorded_and_nothing_else(path: Path, new_log: NewLog) -> None:
    log = new_log(required=True)
    log.record("load", "loaded", {})
    with no_room(path, more=20):
        with pytest.raises(AuditError, match=r"File too large.*--audit-required"):
            log.demand("load", "started", {})
        log.record("unload", "unloaded", {})
    assert (log.failures, log.lines) == (2, 1)
    log.demand("load", "started", {})
    assert documents(path)[1]["lost"] == 2
    assert verify([path]).head.seq == 2


def test_without_the_demand_of_the_operator_a_full_disk_stops_nothing(
    path: Path, new_log: NewLog, caplog: pytest.LogCaptureFixture
) -> None:
    log = new_log()
    log.record("load", "loaded", {})
    with no_room(path):
        for _ in range(100):
            log.demand("load", "started", {})
    assert log.failures == 100
    assert caplog.text.count("cannot be written: File too large") == 1  # once a minute
    log.record("load", "loaded", {})
    assert documents(path)[-1]["lost"] == 100
    assert verify([path]).head.seq == 2


def test_no_part_of_a_line_that_found_no_room_stays_for_the_next_server(path: Path, new_log: NewLog) -> None:
    log = new_log()
    log.record("load", "loaded", {})
    with no_room(path, more=33):
        log.record("load", "loaded", {})
        assert path.read_bytes().endswith(b"\n")
        log.close()
    new_log()
    assert verify([path]).head.seq == 1


def test_the_head_is_logged_at_the_end(path: Path, new_log: NewLog, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = new_log()
    log.record("load", "loaded", {})
    head = log.head
    log.close()
    assert f"ends with line 1, SHA-256 {head.hash}" in caplog.text


def test_after_the_end_nothing_is_recorded_and_nothing_breaks(path: Path, new_log: NewLog) -> None:
    log = new_log(required=True)
    log.close()
    log.record("load", "loaded", {})
    log.note("denied", "denied", {})
    log.reopen()
    with pytest.raises(AuditError):
        log.demand("load", "started", {})
    assert path.read_bytes() == b""


def test_a_copy_that_truncates_does_not_make_the_log_grow_zeros(path: Path, new_log: NewLog) -> None:
    log = new_log()
    for _ in range(3):
        log.record("load", "loaded", {})
    os.truncate(path, 0)
    with no_room(path, more=10):
        log.record("load", "loaded", {})
    log.record("load", "loaded", {})
    assert b"\0" not in path.read_bytes()
    assert verify([path]).first == 4


# -- notes and threads --------------------------------------------------------------------------------------------


def test_threads_write_one_chain(path: Path, new_log: NewLog) -> None:
    log = new_log()
    start = threading.Barrier(32)

    def write(number: int) -> None:
        start.wait()
        for turn in range(25):
            log.record("load", "loaded", {"model": f"m{number}", "turn": turn})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verify([path]).head.seq == 800
    for number in range(32):
        turns = [one["what"]["turn"] for one in documents(path) if one["what"]["model"] == f"m{number}"]
        assert turns == list(range(25))


def test_strangers_cannot_fill_the_disk_with_notes(path: Path, new_log: NewLog) -> None:
    log = new_log()
    for number in range(5000):
        log.note("denied", "denied", {"number": number})
    log.close()
    found = documents(path)
    denied = [one for one in found if one["event"] == "denied"]
    told = sum(one["what"]["notes"] for one in found if one["result"] == "suppressed")
    assert 100 <= len(denied) < 2500
    assert told == log.suppressed == 5000 - len(denied)
    assert verify([path]).head.seq == len(found)


def test_a_note_has_who_acted_when_it_was_taken(path: Path, new_log: NewLog) -> None:
    log = new_log()
    with acting_as(Actor("client", "eve")):
        log.note("denied", "denied", {})
    log.close()
    assert documents(path)[0]["who"]["client"] == "eve"


def test_the_lock_goes_with_the_process(path: Path, new_log: NewLog) -> None:
    log = new_log()
    log.close()
    with path.with_name("audit.log.head").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(RepoAgentError, match="in use"):
            new_log()


@pytest.mark.parametrize("whole", [True, False], ids=["directory", "file"])
def test_a_log_that_is_removed_goes_on_in_a_new_file(
    tmp_path: Path, path: Path, caplog: pytest.LogCaptureFixture, whole: bool
) -> None:
    written = tmp_path / "logs" / path.name
    written.parent.mkdir()
    log = AuditLog(written, required=True)
    log.record("load", "loaded", {"model": "a"})
    if whole:
        shutil.rmtree(tmp_path / "logs")
    else:
        written.unlink()
    log.demand("load", "loaded", {"model": "b"})
    log.demand("load", "loaded", {"model": "c"})
    assert [line["seq"] for line in documents(written)] == [2, 3]
    assert "its lines up to 1 are lost" in caplog.text
    with pytest.raises(UnavailableError, match="in use by another server"):
        AuditLog(written)
    log.close()
    assert verify([written]).head.seq == 3


def test_a_log_that_only_records_loses_no_event() -> None:
    class Events(Audit):
        def __init__(self) -> None:
            self.taken: list[str] = []

        def record(self, event: str, result: str, what: What, actor: Actor | None = None) -> None:
            self.taken.append(event)

    events = Events()
    events.demand("load", "begun", {})
    events.note("access", "denied", {})
    assert events.taken == ["load", "access"]
