"""What the user of the workers is given, and what a hostile worker cannot have it given."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from repoagent_server.processes.user import WorkerUser

from repoagent.errors import InvalidArgumentError, UnavailableError

USER, STRANGER = 65534, 65533

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has another user to give")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users may enter."""
    with tempfile.TemporaryDirectory(prefix="repoagent-test-user-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture
def user() -> WorkerUser:
    return WorkerUser.of(str(USER))


def can(what: str, path: Path, user: int = USER) -> bool:
    """Whether a process of ``user`` can read, or write, a file."""
    test = ["/bin/sh", "-c", '[ "$1" "$2" ]', "sh", {"read": "-r", "write": "-w"}[what], str(path)]
    return not subprocess.run(test, user=user, group=user, extra_groups=[user], check=False).returncode


def made(path: Path, mode: int = 0o600) -> Path:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text("text")
    path.chmod(mode)
    return path


def test_what_is_handed_over_can_be_read_by_that_user_alone(user: WorkerUser, place: Path) -> None:
    private = place / "private"
    file, other = made(private / "1" / "m" / "file"), made(private / "2" / "m" / "file", 0o644)
    user.hand_over(private / "1" / "m", [place / "elsewhere", private])
    assert (can("read", file), can("write", file), can("read", file, STRANGER)) == (True, False, False)
    assert not can("read", other)
    assert not can("read", other, STRANGER)
    assert file.stat().st_uid == 0


def test_what_is_handed_over_again_opens_to_no_group_and_to_no_other_user_less(user: WorkerUser, place: Path) -> None:
    private = place / "private"
    file = made(private / "m" / "file")
    for each in (user, user, WorkerUser.of(str(STRANGER))):
        each.hand_over(private / "m", [private])
        each.prepare_log(place / "log")
    test = ["/bin/sh", "-c", '[ -r "$1" ] || [ -w "$2" ]', "sh", str(file), str(place / "log")]
    groups = {"user": STRANGER - 1, "group": file.stat().st_gid, "extra_groups": [file.stat().st_gid]}
    assert subprocess.run(test, **groups, check=False).returncode  # type: ignore[call-overload]
    assert can("read", file)
    assert can("read", file, STRANGER)
    file.chmod(0o600)
    assert not can("read", file)
    user.hand_over(private / "m", [private])
    assert (can("read", file), can("read", file, STRANGER)) == (True, False)


def test_a_link_in_what_is_handed_over_opens_nothing_else(user: WorkerUser, place: Path) -> None:
    key, private = made(place / "key"), place / "private"
    made(private / "m" / "file")
    (private / "m" / "link").symlink_to(key)
    (private / "m" / "directory").symlink_to(place)
    os.mkfifo(private / "m" / "pipe")
    user.hand_over(private / "m", [private])
    assert can("read", private / "m" / "file")
    assert not can("read", key)


def test_what_is_the_operators_stays_as_it_is(user: WorkerUser, place: Path) -> None:
    file = made(place / "repository" / "m" / "file")
    user.hand_over(place / "repository" / "m", [place / "private"])
    assert not os.listxattr(file)
    assert not os.listxattr(file.parent)


def test_a_log_can_be_written_and_what_a_hostile_worker_puts_in_its_place_cannot(user: WorkerUser, place: Path) -> None:
    log, key = place / "log", made(place / "key")
    user.prepare_log(log)
    assert (can("write", log), can("write", log, STRANGER), log.stat().st_uid) == (True, False, 0)
    for put in (log.symlink_to, log.hardlink_to):
        log.unlink()
        put(key)
        with pytest.raises(UnavailableError):
            user.prepare_log(log)
        assert not can("read", key)
    log.unlink()
    made(log)
    os.chown(log, USER, USER)
    with pytest.raises(UnavailableError):
        user.prepare_log(log)
    user.prepare_log(Path("/dev/null"))
    log.unlink()
    log.symlink_to("/dev/null")  # As /dev/stdout is one.
    user.prepare_log(log)
    os.chown(log, USER, USER, follow_symlinks=False)
    with pytest.raises(UnavailableError):
        user.prepare_log(log)
    log.unlink()
    os.mkfifo(log)
    os.chown(log, USER, USER)
    with pytest.raises(UnavailableError):
        user.prepare_log(log)
    assert not os.listxattr("/dev/null")


@pytest.mark.parametrize("name", ["0", "root", "no-such-user", "-1", "4294967295", "9999999999999", "", "\uff11"])
def test_who_cannot_be_the_user_of_workers(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="--worker-user"):
        WorkerUser.of(name)
