"""The tutorial, executed: its files are written, its commands run, and their output is what the page says."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
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

    def run(self, command: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        # $? stays what the command left it.
        self.process.stdin.write(f"{command}\nstatus=$?; echo '{END}'; (exit $status)\n")
        self.process.stdin.flush()
        output = ""
        for line in iter(self.process.stdout.readline, ""):
            output += line
            if line.endswith(f"{END}\n"):
                break
        return output.removesuffix(f"{END}\n")


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
        yield Shell(process)
        os.killpg(process.pid, signal.SIGKILL)  # what the tutorial started in the background too, should a step fail


def shim(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_the_tutorial_does_what_it_says(shell: Shell, pages: dict[str, Any], tmp_path: Path) -> None:
    port = free_port()
    for step in steps(pages["docs/tutorial.md"]):
        if step.path:
            target = tmp_path / "tutorial" / step.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(step.text)
        else:
            output = shell.run(step.text.replace("8000", port))
            assert matches(output, step.output), f"$ {step.text}\n{output}\n--- expected:\n{step.output}"


def test_its_agent_has_about_twenty_lines(pages: dict[str, Any]) -> None:
    (agent,) = [block for block in pages["docs/tutorial.md"].blocks() if block.title.endswith("agent.py")]
    body = agent.body.partition("class ")[2]
    assert len([line for line in body.splitlines() if line.strip()]) <= 20
