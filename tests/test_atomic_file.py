"""Files that are replaced as a whole."""

import os
from pathlib import Path

import pytest

from repoagent.atomic_file import replace_file


@pytest.mark.parametrize(("private", "mode"), [(False, 0o640), (True, 0o600)])
def test_a_file_is_replaced_with_the_mode_that_was_asked_for(tmp_path: Path, private: bool, mode: int) -> None:
    path = tmp_path / "cache"
    umask = os.umask(0o027)
    try:
        for data in (b"one", b"two"):
            replace_file(path, data, private=private)
            assert path.read_bytes() == data
    finally:
        os.umask(umask)
    assert path.stat().st_mode & 0o777 == mode
    assert [one.name for one in tmp_path.iterdir()] == ["cache"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "cache"
    victim.write_bytes(b"mine")
    path.symlink_to(victim)
    replace_file(path, b"theirs")
    assert victim.read_bytes() == b"mine"
    assert not path.is_symlink()


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    path.mkdir()
    (path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="cache"):
        replace_file(path, b"data")
    assert [one.name for one in tmp_path.iterdir()] == ["cache"]
