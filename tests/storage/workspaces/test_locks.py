import os
from pathlib import Path

import pytest

from repoagent.errors import CancelledError
from repoagent.storage.workspaces.locks import FileLock


def test_two_locks_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    with first.acquired():
        assert not second.try_acquire()
        assert not second.try_acquire(shared=True)
    assert second.try_acquire()
    second.release()
    second.release()


def test_shared_holders_stand_each_other_and_no_exclusive_one(tmp_path: Path) -> None:
    locks = [FileLock(tmp_path / "lock") for _ in range(3)]
    assert locks[0].try_acquire(shared=True)
    assert locks[1].try_acquire(shared=True)
    assert not locks[2].try_acquire()
    for lock in locks:
        lock.release()


def test_waiting_can_be_cancelled(tmp_path: Path) -> None:
    answers = iter([False, True])
    with FileLock(tmp_path / "lock").acquired(), pytest.raises(CancelledError):
        FileLock(tmp_path / "lock").acquire(cancelled=lambda: next(answers))


def test_the_lock_of_a_removed_file_is_not_taken_for_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def open_too_early(path: Path, *arguments: int) -> int:
        fd = opened(path, *arguments)
        monkeypatch.setattr(os, "open", opened)
        Path(path).unlink()  # its last holder removes the file between our opening and locking it
        return fd

    monkeypatch.setattr(os, "open", open_too_early)
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    first.acquire()
    assert not second.try_acquire()
    first.release()


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to("elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        FileLock(tmp_path / "lock").try_acquire()
    assert not (tmp_path / "elsewhere").exists()
