"""Plans carry NVIDIA's licence: none is part of this repository."""

import subprocess
from pathlib import Path

import pytest

TREE = Path(__file__).parents[3]


def test_no_plan_is_committed() -> None:
    if not (TREE / ".git").exists():
        pytest.skip("not a checkout")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=TREE, capture_output=True, check=True).stdout.split(b"\0")
    files = [TREE / name.decode() for name in names if name]
    plans = [path for path in files if path.is_file() and path.read_bytes()[:4] in (b"vtrt", b"ftrt")]
    assert plans == []
