"""What becomes of a server that nobody stopped when its program ends. Each test runs a program of its own."""

import logging
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from repoagent.server.at_exit import _Running
from tests.onnx_models import perceptron, save_model

AGENT = """
from repoagent.api import Agent

class TraceAgent(Agent):
    api_version = 1

    def model_action(self, model, action):
        if action.name == "LOAD":
            target = model.acquire_location()
            (target / "1").mkdir()
            model.update_location(target)
        with open(model.parameters.get("log"), "a") as log:
            log.write(action.name + "\\n")
"""

CONFIG = """
backend: "identity"
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }}
model_repository_agents {{ agents [ {{ name: "trace" parameters {{ key: "log" value: "{log}" }} }} ] }}
"""

START = """
import os, sys, threading, time
from repoagent.server import Server

def start():
    return Server(
        model_repository="models", repo_agent_directory="agents", workspace_directory="workspace",
        agent_cache_directory="cache",
    ).start()

server = start()
"""

LIFE = ["LOAD", "LOAD_COMPLETE", "UNLOAD", "UNLOAD_COMPLETE"]


class Program:
    """Python code that runs in a directory with a model and its agent."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._log = directory / "log"
        (directory / "agents" / "trace").mkdir(parents=True)
        (directory / "agents" / "trace" / "agent.py").write_text(AGENT)
        (directory / "models" / "m" / "1").mkdir(parents=True)
        (directory / "models" / "m" / "config.pbtxt").write_text(CONFIG.format(log=self._log))

    def run(self, code: str, status: int = 0) -> str:
        """What it wrote to stderr."""
        done = subprocess.run(
            [sys.executable, "-c", START + dedent(code)],
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return done.stderr

    @property
    def actions(self) -> list[str]:
        return self._log.read_text().split()

    @property
    def leftovers(self) -> list[Path]:
        return [path for path in (self.directory / "workspace").iterdir() if path.name != ".lock"]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    if (3, 12, 0) <= sys.version_info < (3, 12, 3):
        pytest.skip("this Python starts no thread when the program ends, so it stops no server then")
    return Program(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "status"),
    [("", 0), ("raise ValueError('the reason')", 1), ("sys.exit(3)", 3), ("del server", 0), ("server.stop()", 0)],
)
def test_its_agents_hear_of_the_unload_once(program: Program, end: str, status: int) -> None:
    errors = program.run(end, status)
    assert program.actions == LIFE
    assert ("the reason" in errors) is (status == 1)
    assert "Exception ignored" not in errors
    assert program.leftovers == []


@pytest.mark.slow
def test_it_serves_as_long_as_a_thread_of_the_program_needs_it(program: Program) -> None:
    program.run(
        """
        ended = threading.Event()
        threading._register_atexit(ended.set)  # When the program has nothing else to do, before threads are joined.

        def work():
            ended.wait()
            with open("seen", "w") as seen:
                seen.write(str(server.model("m").ready()))

        threading.Thread(target=work).start()
        """
    )
    assert (program.directory / "seen").read_text() == "True"
    assert program.actions == LIFE
    assert program.leftovers == []


@pytest.mark.slow
def test_the_end_of_a_forked_child_unloads_nothing(program: Program) -> None:
    program.run(
        """
        child = os.fork()
        if child == 0:
            sys.exit(0)  # As a program ends: what is registered for that runs in the child too.
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert open("log").read().split() == ["LOAD", "LOAD_COMPLETE"]
        assert server.ready()
        """
    )
    assert program.actions == LIFE


@pytest.mark.slow
@pytest.mark.parametrize("end", ["server.stop()", "server.__exit__()", "server.unload('m')"])
def test_a_forked_child_can_end_and_use_nothing_of_its_parents_server(program: Program, end: str) -> None:
    errors = program.run(
        f"""
        child = os.fork()
        if child == 0:
            {end}
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == {1 if "unload" in end else 7}
        assert open("log").read().split() == ["LOAD", "LOAD_COMPLETE"]
        assert server.ready()
        """
    )
    assert ("it is in the process that this one was forked from" in errors) is ("unload" in end)
    assert program.actions == LIFE


@pytest.mark.slow
def test_a_server_that_a_forked_child_starts_ends_with_the_child(program: Program) -> None:
    program.run(
        """
        server.stop()
        child = os.fork()
        if child == 0:
            start()
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        """
    )
    assert program.actions == LIFE * 2


@pytest.mark.slow
def test_a_forked_child_with_an_onnx_model_can_end(program: Program) -> None:
    """C12: by `_exit`, as the pages say. `sys.exit` waits for threads of ONNX Runtime that are not in the child."""
    path = program.directory / "models" / "onnx" / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    save_model(perceptron(), path)
    program.run(
        """
        import numpy
        x = numpy.ones((2, 8), numpy.float32)
        list(server.model("onnx").infer(inputs={"x": x}))
        child = os.fork()
        if child == 0:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        """
    )


class Failing:
    def stop(self) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")


def test_one_that_cannot_be_stopped_is_named_and_the_others_are_stopped(caplog: pytest.LogCaptureFixture) -> None:
    class Core:
        stopped = False

        def stop(self) -> None:
            self.stopped = True

    running, core, failing = _Running(), Core(), Failing()
    cores: list[Any] = [failing, core]
    running._cores = cores
    with caplog.at_level(logging.ERROR):
        running._stop_all()
    assert core.stopped
    assert "(can't create new thread at interpreter shutdown): call its stop() before" in caplog.text
