"""A program that is forked off the warm process is as one that ``subprocess`` started."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import Warm

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("words", [["version"], ["serve", "--no-such-flag"], ["check", "not-there"]])
def test_it_prints_and_ends_as_one_that_is_started(warm: Warm, tmp_path: Path, words: list[str]) -> None:
    command = [
        sys.executable,
        "-c",
        "import sys; sys.argv[0] = 'repoagent'; from repoagent.cli.main import main; main()",
    ]
    started = subprocess.run([*command, *words], capture_output=True, text=True, check=False, cwd=tmp_path)
    forked = warm.run(words, cwd=tmp_path)
    assert (forked.returncode, forked.stdout) == (started.returncode, started.stdout)
    assert forked.stderr.splitlines()[-1:] == started.stderr.splitlines()[-1:]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_runs_until_a_signal_and_its_status_is_that_of_subprocess(
    warm: Warm, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "models").mkdir()
    flags = ["--http-port=0", "--allow-grpc=false", "--allow-metrics=false", "--model-control-mode=explicit"]
    ready = tmp_path / "ready"
    with (tmp_path / "log").open("w") as log:
        words = ["serve", *flags, f"--model-repository={tmp_path / 'models'}", f"--ready-file={ready}"]
        program = warm.start(words, stderr=log)
    while not ready.exists():
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(0.01)
        assert program.poll() is None
    program.send_signal(number)
    assert program.wait(60) == (0 if number == signal.SIGTERM else -number)
    program.kill()  # It has ended: as for subprocess, this is no error.
    assert program.poll() == program.returncode == program.wait()
