"""What the scan of a directory finds."""

import os
from pathlib import Path

from repoagent_checksum.tree import scan_tree


def test_everything_below_a_directory_is_sorted_in(tmp_path: Path) -> None:
    (tmp_path / "1" / "deep").mkdir(parents=True)
    (tmp_path / "2").mkdir()
    (tmp_path / "config.pbtxt").write_bytes(b"name: 'a'")
    (tmp_path / "1" / "deep" / ".hidden").write_bytes(b"")
    (tmp_path / "1" / "link").symlink_to("deep")
    (tmp_path / "broken").symlink_to("nowhere")
    os.mkfifo(tmp_path / "1" / "pipe")
    tree = scan_tree(tmp_path)
    assert tree.files == {"config.pbtxt": 9, "1/deep/.hidden": 0}
    assert tree.links == ["broken", "1/link"]
    assert tree.special == ["1/pipe"]
    assert tree.empty == ["2"]


def test_an_empty_model_has_no_empty_directory(tmp_path: Path) -> None:
    assert scan_tree(tmp_path).empty == []
