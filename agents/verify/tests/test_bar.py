"""On a terminal ``repoagent sign`` and ``verify`` draw how far they are."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from agents.verify.tests.issuing import key_pem, public_pem
from agents.verify.tests.private_sigstore import new_key

pytestmark = pytest.mark.slow


def on_a_terminal(*arguments: str | Path) -> tuple[int, str]:
    """Exit status, and what a person sees of stderr."""
    ours, theirs = pty.openpty()
    command = [Path(sys.executable).with_name("repoagent"), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:
        """How a terminal ends whose last program has gone."""
    os.close(ours)
    return process.wait(), shown.decode()


@pytest.mark.parametrize("ranges", [[], ["--shard-size", "1000000"]])
def test_both_draw_a_bar_that_ends_full(model: Path, tmp_path: Path, ranges: list[str]) -> None:
    key = new_key()
    (tmp_path / "key").write_bytes(key_pem(key))
    (tmp_path / "public").write_bytes(public_pem(key))
    with (model / "1" / "model.onnx").open("wb") as weights:
        weights.truncate(20 << 20)
    keys: dict[str, list[str | Path]] = {"sign": ["--key", tmp_path / "key", *ranges]}
    keys["verify"] = ["--public-key", tmp_path / "public"]
    for command, given in keys.items():
        status, shown = on_a_terminal(command, model, *given)
        assert status == 0, shown
        assert command in shown
        assert "100%" in shown
