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
    "converters": "subprocess.run(program, env=child_environment())",
    "chat templates": "chat()",
    "guides": "guide()",
    "processes of models": "subprocess.run(program, env=without_secrets(os.environ))",
    "the probe for TensorRT": "subprocess.run(program, env=parent._environment())",
    "what is started once the sentinel was killed": "killed(); subprocess.run(program, env=child_environment())",
    "libraries of a served model": "program_of_server._core = lambda *_: by_itself(); main(['serve', *STORE])",
    "agents that are checked": "main(['check', sys.argv[2] + '/m', '--repoagent-directory', sys.argv[2]])",
    "libraries of a download": "fetch._fetch = lambda *_: by_itself(); main(['fetch', 'https://host/model'])",
    "keys in a TPM": "fetch._fetch = lambda *_: sealed(); main(['fetch', 'https://host/model'])",
}
SERVER = """
import ctypes, os, signal, subprocess, sys
from repoagent import sentinel
from repoagent.cli import fetch as _, main as _
from repoagent.engines import probe as parent
from repoagent_llm.backend.chat import renderer
from repoagent_llm.guidance import trial
from repoagent.programs import child_environment, without_secrets
from repoagent.programs import run_program
from repoagent_decrypt.providers import tpm
from repoagent_server.program import program as program_of_server
fetch, main = sys.modules["repoagent.cli.fetch"], sys.modules["repoagent.cli.main"].program
SCRIPT = "setsid sleep 1000 < /dev/null > /dev/null 2>&1 & echo $! > " + sys.argv[1]
STORE = ["--model-store", sys.argv[2], "--http-port=0", "--grpc-port=0", "--metrics-port=0"]
program = ["sh", "-c", SCRIPT]
def end():
    os.kill(os.getpid(), signal.SIGKILL)
def by_itself():  # As a library in C does, and an agent in C.
    ctypes.CDLL(None).system(SCRIPT.encode())
    end()
def killed():
    sentinel.mark()
    process = sentinel._sentinels[os.getpid()][1]
    process.kill()
    process.wait()
def sealed():
    subprocess.run(program, env=tpm._environment())
    end()
def chat():  # Stopped, it does not see that no one asks it any more.
    stopped(renderer._started()._process)
def guide():
    stopped(trial.Trial()._running())
def stopped(process):
    os.kill(process.pid, signal.SIGSTOP)
    open(sys.argv[1], "w").write(str(process.pid))
WAY
end()
"""
AGENT = """
import ctypes, os, signal
from repoagent.api import Agent
class Starting(Agent):
    api_version = 1
    def load(self, model):
        ctypes.CDLL(None).system(model.parameters["script"].encode())
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("way", WAYS)
def test_what_left_its_group_and_its_parent_ends_with_a_server_that_is_killed(way: str, tmp_path: Path) -> None:
    """L22: such processes lived on after a server that was killed."""
    file = tmp_path / "pid"
    for name, text in (("starting/agent.py", AGENT), ("m/config.pbtxt", config(file)), ("m/1/model.py", "")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-c", SERVER.replace("WAY", WAYS[way]), str(file), str(tmp_path)]
    server = subprocess.run(command, check=False)
    assert server.returncode == -9
    try:
        process = os.pidfd_open(int(file.read_text()))
    except ProcessLookupError:
        return
    ended = select.select([process], [], [], 60)[0]
    os.close(process)
    assert ended


def test_a_program_that_ends_prints_nothing_of_its_sentinel() -> None:
    """It outlives the program on purpose: no process that was forgotten, which Python warns of."""
    code = "from repoagent.sentinel import mark; mark()"
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def config(file: Path) -> str:
    script = f"setsid sleep 1000 < /dev/null > /dev/null 2>&1 & echo $! > {file}"
    return (
        'backend: "python" model_repository_agents { agents { name: "starting" '
        f'parameters {{ key: "script" value: "{script}" }} }} }}'
    )
