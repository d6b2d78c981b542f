"""The tutorial, executed: its files are written, its commands run, and their output is what the page says."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CURL = f"""#!{sys.executable}
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[-1]).read().decode())
"""
PIP = f"""#!/bin/sh
exec {sys.executable} -m pip "$@" --disable-pip-version-check --no-build-isolation --no-deps --no-index
"""
END = "<<<end of output>>>"
PATIENCE = 300
"""Seconds after which a command counts as never ending."""


@dataclass(frozen=True)
class Step:
    """A file to write (``path``, ``text``), or a command to run (``path`` is "") and the output that it must have."""

    path: str
    text: str
    output: str = ""


def steps(page: Any) -> Iterator[Step]:
    for block in page.blocks():
        if block.title:
            yield Step(block.title, block.body)
        elif block.kind == "console":
            yield from commands(block.body)


def commands(body: str) -> Iterator[Step]:
    """The commands of a console block: ``$ `` begins one, ``> `` goes on with it, all else is output."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        rest = [line for line in lines[1:] if not line.startswith("> ")]
        more = [line.removeprefix("> ") for line in lines[1:] if line.startswith("> ")]
        yield Step("", "\n".join([lines[0], *more]), "\n".join(rest))


def matches(output: str, expected: str) -> bool:
    """Whether ``output`` is what the page shows; ``...`` is any text in a line, and by itself any number of lines."""
    lines = [r"(?:.*\n)*" if line == "..." else _any_text(line) + r"\n" for line in expected.splitlines()]
    return re.fullmatch("".join(lines), output if output.endswith("\n") or not output else f"{output}\n") is not None


def _any_text(line: str) -> str:
    return ".*".join(re.escape(part) for part in line.split("..."))


@dataclass
class Shell:
    """One bash, in which the commands run one after the other."""

    process: "subprocess.Popen[str]"
    home: Path

    def run(self, command: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        overdue = threading.Timer(PATIENCE, self.kill)
        overdue.start()
        # $? stays what the command left it.
        self.process.stdin.write(f"{command}\nstatus=$?; echo '{END}'; (exit $status)\n")
        self.process.stdin.flush()
        output = ""
        for line in iter(self.process.stdout.readline, ""):
            output += line
            if line.endswith(f"{END}\n"):
                break
        overdue.cancel()
        log = self.home / "server.log"
        served = log.read_text() if log.exists() else ""
        assert output.endswith(f"{END}\n"), f"did not end within {PATIENCE} s: $ {command}\n{output}\n{served}"
        return output.removesuffix(f"{END}\n")

    def kill(self) -> None:
        """The shell, and what it has started in the background too."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


@pytest.fixture
def shell(tmp_path: Path, tree: Path) -> Iterator[Shell]:
    """In an empty directory, with a virtual environment to install into that sees the packages of this one."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    # addsitedir, because editable installations are .pth files themselves.
    (site / "outer.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in sys.path if path))
    shim(venv / "bin" / "repoagent", f"#!{venv}/bin/python\nfrom repoagent.cli.main import main\nmain()\n")
    shim(venv / "bin" / "pip", PIP.replace(sys.executable, f"{venv}/bin/python"))
    if shutil.which("curl") is None:
        shim(venv / "bin" / "curl", CURL)
    home = tmp_path / "tutorial"
    home.mkdir()
    environment = os.environ | {
        "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
        "REPO": str(tree),
        "REPOAGENT_WORKSPACE": str(tmp_path / "workspace"),
        "REPOAGENT_CACHE": str(tmp_path / "cache"),
        # Other servers may run on this machine.
        "REPOAGENT_SERVE_GRPC_PORT": "0",
        "REPOAGENT_SERVE_METRICS_PORT": "0",
    }
    process = subprocess.Popen(
        ["bash", "--norc"],
        cwd=home,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with process:
        shell = Shell(process, home)
        yield shell
        shell.kill()


def shim(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def elsewhere(command: str, home: Path) -> str:
    """``command`` with a port that is free here in place of 8000: the server chooses one, and the others ask there."""
    if "--http-port 8000" in command:
        return command.replace("8000", "0")
    if "8000" in command:
        return command.replace("8000", str(json.loads((home / "ready.json").read_text())["http"]["port"]))
    return command


@pytest.mark.slow
def test_the_tutorial_does_what_it_says(shell: Shell, pages: dict[str, Any]) -> None:
    for step in steps(pages["docs/tutorial.md"]):
        if step.path:
            target = shell.home / step.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(step.text)
        else:
            output = shell.run(elsewhere(step.text, shell.home))
            assert matches(output, step.output), f"$ {step.text}\n{output}\n--- expected:\n{step.output}"


def test_its_agent_has_about_twenty_lines(pages: dict[str, Any]) -> None:
    (agent,) = [block for block in pages["docs/tutorial.md"].blocks() if block.title.endswith("agent.py")]
    body = agent.body.partition("class ")[2]
    assert len([line for line in body.splitlines() if line.strip()]) <= 20
