"""Running a program for an agent."""

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from repoagent.errors import CancelledError, InternalError, InvalidArgumentError, UnavailableError
from repoagent.loader.agent_model import run_child


def python(code: str, *, timeout: float | None = 30, env: dict[str, str] | None = None) -> str:
    done = run_child([sys.executable, "-c", code], timeout=timeout, env=env, cancelled=lambda: False)
    assert done.returncode == 0
    return done.stdout


def test_output_is_captured_as_text_and_variables_are_added() -> None:
    code = "import os, sys; print(os.environ['COLOUR'], 'PATH' in os.environ); print('e', file=sys.stderr)"
    assert python(code, env={"COLOUR": "blue"}) == "blue True\n"


def test_much_output_does_not_block() -> None:
    assert len(python("print('x' * 1_000_000)")) == 1_000_001


def test_a_bad_status_is_an_error_with_the_last_lines_of_stderr() -> None:
    code = "import sys\nfor i in range(30): print('line', i, file=sys.stderr)\nsys.exit(3)"
    with pytest.raises(InternalError) as caught:
        python(code)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"'{sys.executable}' ended with status 3: line 20"
    assert lines[-1] == "line 29"


def test_a_silent_failure_and_a_signal_are_named() -> None:
    with pytest.raises(InternalError, match="ended with status 1 and wrote nothing to stderr"):
        python("raise SystemExit(1)")
    with pytest.raises(InternalError, match="was ended by SIGTERM"):
        python("import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    with pytest.raises(InternalError, match="was ended by signal 40"):
        python("import os; os.kill(os.getpid(), 40)")


def test_a_program_that_is_not_there_is_an_error() -> None:
    with pytest.raises(InternalError, match="cannot run '/no/such/program': No such file or directory"):
        run_child(["/no/such/program"], timeout=None, env=None, cancelled=lambda: False)


@pytest.mark.parametrize("argv", ["openssl version", []])
def test_a_command_line_in_one_text_and_an_empty_one_are_refused(argv: Sequence[str]) -> None:
    with pytest.raises(InvalidArgumentError, match="run_child takes a list"):
        run_child(argv, timeout=30, env=None, cancelled=lambda: False)


def test_the_timeout_kills_it() -> None:
    with pytest.raises(UnavailableError, match=r"was killed after 0\.2 s"):
        python("import time; time.sleep(600)", timeout=0.2)


def test_cancelling_kills_the_program_and_its_children(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    os.mkfifo(alive)
    # Both hold the pipe open for writing, so its reader sees the end when both are dead.
    code = (
        "import os, subprocess, sys, time\n"
        f"pipe = os.open({str(alive)!r}, os.O_WRONLY)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], pass_fds=[pipe])\n"
        "os.write(pipe, b'x')\n"
        "time.sleep(600)\n"
    )
    cancelled = threading.Event()
    read: list[bytes] = []

    def cancel_when_both_run() -> None:
        with alive.open("rb") as pipe:
            read.append(pipe.read(1))
            cancelled.set()
            read.append(pipe.read())

    watcher = threading.Thread(target=cancel_when_both_run, daemon=True)
    watcher.start()
    with pytest.raises(CancelledError, match="was killed because the load was cancelled"):
        run_child([sys.executable, "-c", code], timeout=None, env=None, cancelled=cancelled.is_set)
    watcher.join(60)
    assert read == [b"x", b""]
