import fcntl
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from repoagent.errors import CancelledError, UnsafePathError
from repoagent.storage.transfer.snapshot import snapshot

Write = Callable[[Path, dict[str, bytes]], Path]
Read = Callable[[Path], dict[str, bytes]]


def test_a_snapshot_is_equal_and_shares_no_inode(tmp_path: Path, write_tree: Write, read_tree: Read) -> None:
    files = {"config.pbtxt": b"c", "1/model.onnx": os.urandom(3 << 20), "1/empty": b"", "run.sh": b"#!"}
    write_tree(tmp_path / "m", files)
    (tmp_path / "m" / "run.sh").chmod(0o755)
    snapshot(tmp_path / "m", tmp_path / "copy")
    assert read_tree(tmp_path / "copy") == files
    assert (tmp_path / "copy/run.sh").stat().st_mode & 0o777 == 0o700
    (tmp_path / "m/config.pbtxt").write_bytes(b"changed later")
    assert (tmp_path / "copy/config.pbtxt").read_bytes() == b"c"
    assert all(path.stat().st_nlink == 1 for path in (tmp_path / "copy").rglob("*") if path.is_file())


def test_blocks_are_shared_where_the_filesystem_can(
    tmp_path: Path, write_tree: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(fcntl, "ioctl", lambda copy, request, source: asked.append(request))
    write_tree(tmp_path / "m", {"a": b"1"})
    snapshot(tmp_path / "m", tmp_path / "copy")
    assert asked == [0x40049409]
    assert (tmp_path / "copy/a").read_bytes() == b""  # the kernel would have filled it; nothing was copied


def test_the_model_itself_may_be_a_link(tmp_path: Path, write_tree: Write, read_tree: Read) -> None:
    write_tree(tmp_path / "m", {"a": b"1"})
    (tmp_path / "link").symlink_to("m")
    snapshot(tmp_path / "link", tmp_path / "copy")
    assert read_tree(tmp_path / "copy") == {"a": b"1"}


@pytest.mark.parametrize("kind", ["link", "inner link", "directory link", "pipe", "socket"])
def test_links_and_special_files_are_refused(tmp_path: Path, write_tree: Write, kind: str) -> None:
    root = write_tree(tmp_path / "m", {"1/a": b"1"})
    odd = root / "1" / "odd"
    match kind:
        case "link":
            odd.symlink_to("/etc/passwd")
        case "inner link":
            odd.symlink_to("a")
        case "directory link":
            odd.symlink_to("..")
        case "pipe":
            os.mkfifo(odd)
        case "socket":
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(odd))
    with pytest.raises(UnsafePathError, match="1/odd"):
        snapshot(root, tmp_path / "copy")


def test_a_snapshot_can_be_cancelled(tmp_path: Path, write_tree: Write) -> None:
    with pytest.raises(CancelledError):
        snapshot(write_tree(tmp_path / "m", {"a": b"1"}), tmp_path / "copy", cancelled=lambda: True)


def test_a_snapshot_of_one_large_file_can_be_cancelled_in_the_middle(tmp_path: Path, write_tree: Write) -> None:
    asked = iter([False, False, True])
    copy = tmp_path / "copy"
    with pytest.raises(CancelledError):
        snapshot(write_tree(tmp_path / "m", {"a": bytes(3 << 20)}), copy, cancelled=lambda: next(asked))
    assert (copy / "a").stat().st_size == 1 << 20
