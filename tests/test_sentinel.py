"""What a server's children start ends with the server, whatever they did to leave it."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

# Each way in which the server starts programs; ``program`` leaves its group and its parent, and prints its number.
WAYS = {
    "what agents and exec: keys run": "run_program(program, timeout=None, cancelled=lambda: False)",
    "converters and chat templates": "subprocess.run(program, env=child_environment())",
    "processes of models": "subprocess.run(program, env=without_secrets(os.environ))",
    "the probe for TensorRT": "subprocess.run(program, env=parent._environment())",
}
SERVER = """
import os, signal, subprocess, sys
from repoagent.engines.probing import parent
from repoagent.storage.secrets.environment import child_environment, without_secrets
from repoagent.storage.secrets.programs import run_program
program = ["sh", "-c", "setsid sleep 1000 < /dev/null > /dev/null 2>&1 & echo $! > " + sys.argv[1]]
WAY
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("way", WAYS)
def test_what_left_its_group_and_its_parent_ends_with_a_server_that_is_killed(way: str, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    command = [sys.executable, "-c", SERVER.replace("WAY", WAYS[way]), str(file)]
    server = subprocess.run(command, check=False)
    assert server.returncode == -9
    try:
        process = os.pidfd_open(int(file.read_text()))
    except ProcessLookupError:
        return
    ended = select.select([process], [], [], 60)[0]
    os.close(process)
    assert ended
