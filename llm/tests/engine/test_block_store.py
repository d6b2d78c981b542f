"""Blocks in files: what is written comes back, and nothing else does."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from repoagent_llm.engine.block_store import BlockStore

TOKENS = list(range(32))
BLOCK = bytes(range(100))


def _written(folder: Path, *numbers: int, most: int = 1 << 20, identity: str = "model") -> list[Path]:
    store = BlockStore(folder, identity, len(BLOCK), most)
    for number in numbers:
        store.keep(number, TOKENS, BLOCK)
    store.close()
    return sorted(folder.glob("*/*"))


def _load(folder: Path, number: int, tokens: list[int] = TOKENS, identity: str = "model") -> bytes | None:
    store = BlockStore(folder, identity, len(BLOCK), 1 << 20)
    try:
        return store.load(number, tokens)
    finally:
        store.close()


def test_what_was_written_comes_back_after_a_restart(tmp_path: Path) -> None:
    (file,) = _written(tmp_path, 7)
    assert file.name == "0000000000000007.kv"
    assert file.stat().st_mode & 0o77 == file.parent.stat().st_mode & 0o77 == 0
    assert _load(tmp_path, 7) == BLOCK
    assert _load(tmp_path, 8) is None
    assert _load(tmp_path, 7, identity="another model") is None


@pytest.mark.parametrize("place", [0, 31, 32, 80])
def test_a_changed_file_is_removed_and_not_used(place: int, tmp_path: Path) -> None:
    (file,) = _written(tmp_path, 7)
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    assert _load(tmp_path, 7) is None
    assert not file.exists()


@pytest.mark.parametrize("size", [0, 31, 33, 131, 133])
def test_a_file_that_was_cut_while_it_was_known_is_not_used(size: int, tmp_path: Path) -> None:
    _written(tmp_path, 7)
    store = BlockStore(tmp_path, "model", len(BLOCK), 1 << 20)
    (file,) = tmp_path.glob("*/*")
    file.write_bytes((file.read_bytes() + b"x")[:size])
    assert store.has(7)
    assert store.load(7, TOKENS) is None
    assert not store.has(7)
    assert not file.exists()
    store.close()


_FULL = """
import resource, sys
from pathlib import Path
from repoagent_llm.engine.block_store import BlockStore
store = BlockStore(Path(sys.argv[1]), "model", 100, 1 << 20)
store.keep(1, [5], bytes(100))
store.close()
store = BlockStore(Path(sys.argv[1]), "model", 100, 1 << 20)
resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40))
for number in (2, 3):
    store.keep(number, [5], bytes(100))
store.close()
print(len(store), store.load(1, [5]) == bytes(100), store.load(2, [5]))
"""


def test_a_disk_that_is_full_keeps_what_it_has_and_no_half_files(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _FULL, str(tmp_path)]
    done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "True", "None"]
    assert [file.stat().st_size for file in tmp_path.glob("*/*")] == [132]
    assert done.stderr.count("cannot be kept in files") == 1


@pytest.mark.parametrize("failing", ["open", "utime", "scandir", "unlink"])
def test_a_call_that_fails_in_a_disk_is_no_error(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    store = BlockStore(tmp_path, "model", len(BLOCK), 9 * (len(BLOCK) + 32))  # looks at its folder at every second
    store.keep(1, TOKENS, BLOCK)
    store.close()
    store = BlockStore(tmp_path, "model", len(BLOCK), 9 * (len(BLOCK) + 32))
    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fail)
        found = store.load(1, TOKENS)  # before others need its room
        for number in range(2, 20):
            store.keep(number, TOKENS, BLOCK)
        store.close()
    assert found in (None, BLOCK)
    assert "Input/output error" in caplog.text


def test_a_file_that_was_removed_meanwhile_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (file,) = _written(tmp_path, 7)
    store = BlockStore(tmp_path, "model", len(BLOCK), 1000)
    file.unlink()
    assert store.load(7, TOKENS) is None
    store.close()
    assert caplog.text == ""


def test_a_file_of_other_tokens_or_another_name_is_not_used(tmp_path: Path) -> None:
    (file,) = _written(tmp_path, 7)
    assert _load(tmp_path, 7, [*TOKENS[:-1], 99]) is None
    (file,) = _written(tmp_path, 7)
    file.rename(file.with_name("0000000000000008.kv"))
    assert _load(tmp_path, 8) is None


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (file,) = _written(tmp_path / "store", 7)
    file.rename(tmp_path / "elsewhere")
    store = BlockStore(tmp_path / "store", "model", len(BLOCK), 1 << 20)
    store._known["0000000000000007.kv"] = None
    file.symlink_to(tmp_path / "elsewhere")
    assert store.load(7, TOKENS) is None
    store.close()


def test_the_one_unused_longest_goes_first(tmp_path: Path) -> None:
    most = 3 * (32 + len(BLOCK))
    for age, file in enumerate(_written(tmp_path, 1, 2, 3, most=most)):
        os.utime(file, (1000 + age, 1000 + age))
    assert _load(tmp_path, 1) == BLOCK
    files = _written(tmp_path, 4, most=most)
    assert [file.name[15] for file in files] == ["1", "3", "4"]
    assert len(_written(tmp_path, most=most // 3)) == 1
    assert not _written(tmp_path, 5, most=0)


def test_what_was_not_finished_is_removed(tmp_path: Path) -> None:
    (file,) = _written(tmp_path, 7)
    old, new, cut = (file.with_name(name) for name in (".a", ".b", "0000000000000009.kv"))
    for path in (old, new, cut):
        path.write_bytes(b"1")
    for path in (old, cut):
        os.utime(path, (time.time() - 100, time.time() - 100))
    assert _written(tmp_path) == [new, file]


def test_a_disk_that_fails_costs_speed_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = BlockStore(tmp_path, "model", len(BLOCK), 1 << 20)
    (folder,) = tmp_path.iterdir()
    folder.rmdir()
    folder.write_text("no folder")
    for number in range(3):
        store.keep(number, TOKENS, BLOCK)
    store.close()
    assert len(store) == 0
    assert store.load(1, TOKENS) is None
    assert caplog.text.count("cannot be kept in files") == 1


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    (file,) = _written(tmp_path, 7)
    file.parent.chmod(0o777)
    with pytest.raises(PermissionError, match="no other user"):
        _written(tmp_path)


def test_a_folder_in_which_others_may_rename_it_is_refused(tmp_path: Path) -> None:
    _written(tmp_path / "blocks", 7)
    (tmp_path / "blocks").chmod(0o777)
    with pytest.raises(PermissionError, match="no other user"):
        _written(tmp_path / "blocks")
    (tmp_path / "blocks").chmod(0o1777)
    assert len(_written(tmp_path / "blocks")) == 1


def test_a_folder_that_is_made_for_a_group_is_taken(tmp_path: Path) -> None:
    before = os.umask(0o002)  # as where each user has a group of its own
    try:
        assert len(_written(tmp_path / "made" / "blocks", 7)) == 1
    finally:
        os.umask(before)
    assert len(_written(tmp_path / "made" / "blocks")) == 1


def test_processes_that_share_a_folder_fill_it_once(tmp_path: Path) -> None:
    room = 24
    stores = [BlockStore(tmp_path, "model", len(BLOCK), room * (32 + len(BLOCK))) for _ in range(3)]
    for turn in range(2 * room):
        for number, store in enumerate(stores):
            store._write(f"{1000 * number + turn:016x}.kv", TOKENS, BLOCK)
    for store in stores:
        store.close()
    (folder,) = tmp_path.iterdir()
    assert room // 2 < len(list(folder.iterdir())) <= room * 3 // 2


def test_what_another_process_has_removed_keeps_no_other_from_being_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = _written(tmp_path, 7)
    entries = list(os.scandir(file.parent))
    file.with_name("0000000000000008.kv").touch()
    gone = [entry for entry in os.scandir(file.parent) if entry not in entries and entry.name != file.name]
    file.with_name("0000000000000008.kv").unlink()
    monkeypatch.setattr(os, "scandir", lambda _: [*gone, *entries])
    assert _load(tmp_path, 7) == BLOCK
