"""Files that are replaced as a whole."""

from pathlib import Path

import pytest

from repoagent.engines.files import replace_file


def test_a_file_is_replaced_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "cache"
    for data in (b"one", b"two"):
        replace_file(path, data)
        assert path.read_bytes() == data
    assert path.stat().st_mode & 0o077 == 0
    assert [one.name for one in path.parent.iterdir()] == ["cache"]


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
