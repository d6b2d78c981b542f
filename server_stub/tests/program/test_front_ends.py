"""The ready file."""

import json
import os
from pathlib import Path

import pytest
from repoagent_server.program.front_ends import clear_ready_file, write_ready_file

from repoagent.errors import UnavailableError


def test_it_says_who_serves_where_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "ready.json"
    file.write_text("old")
    write_ready_file(file, {"http": ("127.0.0.1", 8000)})
    assert json.loads(file.read_text()) == {"pid": os.getpid(), "http": {"address": "127.0.0.1", "port": 8000}}
    assert list(tmp_path.iterdir()) == [file]


def test_what_an_earlier_server_left_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "ready.json"
    for _ in range(2):
        clear_ready_file(file)
        assert list(tmp_path.iterdir()) == []
        file.write_text("old")


def test_one_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "nowhere" / "ready.json"
    message = f"cannot write the ready file {file}: No such file or directory"
    with pytest.raises(UnavailableError, match=message):
        clear_ready_file(file)
    with pytest.raises(UnavailableError, match=message):
        write_ready_file(file, {})
