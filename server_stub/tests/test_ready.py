"""The ready file."""

import json
import os
from pathlib import Path

from repoagent_server.ready import write_ready_file


def test_it_says_who_serves_where_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "ready.json"
    file.write_text("old")
    write_ready_file(file, {"http": ("127.0.0.1", 8000)})
    assert json.loads(file.read_text()) == {"pid": os.getpid(), "http": {"address": "127.0.0.1", "port": 8000}}
    assert list(tmp_path.iterdir()) == [file]
