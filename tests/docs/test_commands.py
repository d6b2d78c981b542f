"""Every command of every page runs, or is listed in commands.toml with the reason why it cannot run here.

A page's commands run one after the other in a directory of their own, with what ``prepare`` of commands.toml makes
there. An absolute path of a page lies below that directory, a server chooses its ports, and curl asks the server that
the page has started last. Commands that install or build are compared with the tree. A line with ``[`` or words in
capitals is a synopsis: its command and its flags must exist.
"""

import ast
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
import pytest
from repoagent_server.program.serve_command import serve

from repoagent.cli.main import program
from tests.warm import Warm
from tests.warm_command import WarmCommand

TREE: Final = Path(__file__).resolve().parents[2]
TABLE: Final = tomllib.loads((Path(__file__).parent / "commands.toml").read_text(encoding="utf-8"))
PREPARE: Final[dict[str, str]] = TABLE["prepare"]
VALUES: Final[dict[str, dict[str, str]]] = TABLE["values"]
"""What stands in a page's commands for what only its reader knows, and what takes its place here."""
ELSEWHERE: Final[dict[str, str]] = TABLE["elsewhere"]
"""What a command begins with, and why it does not run here."""
PATIENCE: Final = 120
"""Seconds after which a command counts as never ending."""
OTHER_SUITES: Final = ("docs/tutorial.md",)
"""Pages whose commands have a test of their own, which compares the output too."""

_SYNOPSIS: Final = re.compile(r"\[(?!dev|testing|s3|tensorrt)|\b(?:COMMAND|FLAGS|MODEL_DIR|NAME|MODEL --)(?![\w./-])")
_ABSOLUTE: Final = re.compile(r"(?<![\w./$}])/(?=(?:etc|models|mnt|opt|run|tls|var)\b)")
_SERVER: Final = re.compile(r"(?:repoagent serve|tritonserver) ")
_PORT: Final = re.compile(r"(--(?:http|grpc|metrics)-port)[ =]\d+")


def commands(page: Any) -> Iterator[str]:
    """The commands of the page, in order: indented blocks, those of ``console`` behind a ``$``, each ``sh`` as one."""
    for block in page.code():
        if block.kind == "sh":
            yield block.body
        elif block.kind == "console":
            yield from _split("\n".join(re.findall(r"^[$>] ((?:.*\\\n)*.*)", block.body, re.MULTILINE)))
        elif not block.kind:
            yield from _split(block.body)


def _split(block: str) -> Iterator[str]:
    """The commands of ``block``: one goes on behind an open quote, ``|`` and a backslash."""
    command = ""
    for line in block.splitlines():
        command = f"{command}\n{line}" if command else line
        if not line.endswith(("\\", "|")) and not _is_open(command):
            if not command.lstrip().startswith("#") and command.strip():
                yield command
            command = ""
    assert not command, f"a command that does not end: {command}"


def _is_open(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return True
    return False


def reason(command: str) -> str | None:
    """Why ``command`` does not run here, by commands.toml; None if it does."""
    return next((ELSEWHERE[start] for start in ELSEWHERE if command.startswith(start)), None)


def fault(command: str) -> str | None:
    """What is wrong with a command that is compared instead of run; None if nothing is, or if it is to run."""
    words = shlex.split(command, comments=True)
    if words[:1] == ["make"] and words[1:2] != ["-C"]:
        return None if re.search(rf"^{words[1]}:", (TREE / "Makefile").read_text(), re.MULTILINE) else "no such target"
    if words[:2] == ["pip", "install"]:
        return _wrong_requirement(words[2:])
    if words[0] == "python" and words[1].startswith("benchmarks/"):
        flags = [word.partition("=")[0] for word in words[2:] if word.startswith("--")]
        return next((flag for flag in flags if flag not in _flags(TREE / words[1])), None)
    return None


def _flags(script: Path) -> set[str]:
    """The flags of a benchmark: texts of its own, and the arguments of the harness's ``options_of``."""
    nodes = [*ast.walk(ast.parse(script.read_text()))]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("options_of")]
    named = {keyword.arg for call in calls for keyword in call.keywords if keyword.arg}
    return texts | {f"--{name.replace('_', '-')}" for name in named}


def _wrong_requirement(words: list[str]) -> str | None:
    """The first thing to install that is not in the tree: a file, a directory without a project, an extra."""
    for word in words:
        path, _, extras = word.rstrip("]").partition("[")
        if path.startswith("--") or "=" in path or path == "-e":
            continue
        places = [TREE / path] if "*" not in path else sorted(TREE.glob(path))
        for place in places:
            if place.is_file():
                continue
            if not (place / "pyproject.toml").is_file():
                return f"{word} is no project"
            project = tomllib.loads((place / "pyproject.toml").read_text())["project"]
            if extras and set(extras.split(",")) - set(project.get("optional-dependencies", {})):
                return f"{word} has no such extra"
    return None


def unknown(synopsis: str) -> list[str]:
    """The words of a synopsis of ``repoagent`` or ``tritonserver`` that are no command and no flag of it."""
    words = re.sub(r"[\[\]|]", " ", synopsis).split()
    command: click.Command = serve if words[0] == "tritonserver" else program
    found = []
    for word in words[1:]:
        if word.startswith("-") and word != "--":
            flag = word.partition("=")[0].rstrip(",.;:")
            if not _has(command, flag):
                found.append(f"{command.name} {flag}")
        elif isinstance(command, click.Group) and re.fullmatch(r"[a-z]+", word):
            context = click.Context(command, resilient_parsing=True)
            named = command.get_command(context, word)
            if named is None:
                return [word]
            command = named
    return found


def _has(command: click.Command, flag: str) -> bool:
    known = {"-h", "--help"} | {name for parameter in command.params for name in parameter.opts}
    return flag in known or (flag.endswith("...") and any(name.startswith(flag.rstrip(".")) for name in known))


@dataclass
class Shell:
    """Runs commands below ``home``; variables that one sets are there for the next."""

    home: Path
    environment: dict[str, str]
    server: "subprocess.Popen[bytes] | None" = None
    port: int = 0
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.home / "server.log"

    def run(self, command: str) -> None:
        command = _ABSOLUTE.sub(f"{self.home}/", command)
        if _SERVER.match(command):
            self._start(_PORT.sub(r"\1 0", command))
            return
        command = re.sub(r"(?:localhost|127\.0\.0\.1):8000", f"127.0.0.1:{self.port}", command)
        variables = self.home / ".variables"
        script = f'set -euo pipefail -o allexport\ncurl() {{ command curl -sS --fail-with-body "$@"; }}\n{command}\n'
        ran = subprocess.run(
            ["bash", "-c", f"{script}env -0 > {variables}"],
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert ran.returncode == 0, f"$ {command}\n{ran.stdout[-2000:]}{ran.stderr}\n{self._logged()}"
        pairs = (pair.partition("=") for pair in variables.read_text().split("\0") if not pair.startswith("BASH_FUNC"))
        self.environment = {name: value for name, _, value in pairs if name}

    def _start(self, command: str) -> None:
        self.stop()
        ready = self.home / "ready.json"
        ready.unlink(missing_ok=True)
        with self.log.open("wb") as log:
            self.server = subprocess.Popen(
                ["bash", "-c", f"exec {command} --ready-file {ready}"],
                cwd=self.home,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        end = time.monotonic() + PATIENCE
        while not ready.exists():
            assert self.server.poll() is None, f"$ {command}\n{self._logged()}"
            assert time.monotonic() < end, f"not ready within {PATIENCE} s: $ {command}\n{self._logged()}"
            time.sleep(0.01)
        self.port = json.loads(ready.read_text())["http"]["port"]

    def stop(self) -> None:
        if self.server is not None:
            self.server.send_signal(signal.SIGTERM)
            assert self.server.wait(PATIENCE) == 0, self._logged()
            self.server = None

    def _logged(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


@pytest.fixture
def shell(tmp_path: Path, warm: Warm) -> Iterator[Shell]:
    home, programs = tmp_path / "home", tmp_path / "programs"
    home.mkdir()
    programs.mkdir()
    for name in ("agents", "deploy", "docs", "examples"):
        (home / name).symlink_to(TREE / name)
    ports = {f"REPOAGENT_SERVE_{name}_PORT": "0" for name in ("HTTP", "GRPC", "METRICS")}
    environment = {**os.environ, **ports, "TREE": str(TREE), "DIGITS_IDENTITY": _example_key()}
    environment |= {"PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment |= {f"REPOAGENT_{name.upper()}": str(tmp_path / name) for name in ("workspace", "cache")}
    shell = Shell(home, environment)
    with closing(WarmCommand(warm, programs)):
        yield shell
    if shell.server is not None:
        shell.server.kill()
        shell.server.wait()


def _example_key() -> str:
    return (TREE / "examples/digits/identity.txt").read_text().split()[-1]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "page_to_run" in metafunc.fixturenames:
        metafunc.parametrize("page_to_run", sorted(PREPARE))


def kinds(page: Any) -> Iterator[tuple[str, str]]:
    """Each command of the page with what is done with it: ``run``, ``elsewhere``, ``synopsis`` or ``compared``."""
    for command in commands(page):
        if reason(command) is not None:
            yield "elsewhere", command
        elif re.match(r"repoagent|tritonserver", command) and _SYNOPSIS.search(command):
            yield "synopsis", command
        elif re.match(r"make (?!-C)|pip install|python benchmarks/", command):
            yield "compared", command
        else:
            yield "run", command


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="the pages ask with curl, which is not installed")
def test_the_commands_of_a_page_run(page_to_run: str, pages: dict[str, Any], shell: Shell) -> None:
    """U1: one command of a page did not exist."""
    if PREPARE[page_to_run]:
        for line in _split(PREPARE[page_to_run]):
            shell.run(line)
    ran = [command for kind, command in kinds(pages[page_to_run]) if kind == "run"]
    assert ran, "no command of this page runs; its row of [prepare] can go"
    for command in ran:
        for shown, value in VALUES.get(page_to_run, {}).items():
            command = command.replace(shown, value)
        shell.run(command)
    shell.stop()


def test_every_page_with_a_command_that_runs_has_a_row(pages: dict[str, Any]) -> None:
    runs = {name: [c for kind, c in kinds(page) if kind == "run"] for name, page in pages.items()}
    assert {n: c for n, c in runs.items() if c and n not in PREPARE and n not in OTHER_SUITES} == {}


def test_every_command_that_installs_or_builds_names_what_is_in_the_tree(pages: dict[str, Any]) -> None:
    own = [page for name, page in pages.items() if name not in OTHER_SUITES]
    compared = [command for page in own for kind, command in kinds(page) if kind == "compared"]
    assert len(compared) > 30
    assert {command: fault(command) for command in compared if fault(command)} == {}


def test_every_synopsis_has_commands_and_flags_that_exist(pages: dict[str, Any]) -> None:
    shown = [command for page in pages.values() for kind, command in kinds(page) if kind == "synopsis"]
    named = [span for page in pages.values() for span in page.spans() if re.match("repoagent [a-z]", span)]
    assert len(shown) > 8
    assert len(named) > 60
    assert {synopsis: unknown(synopsis) for synopsis in [*shown, *named] if unknown(synopsis)} == {}


def test_every_row_of_the_table_is_needed(pages: dict[str, Any]) -> None:
    written = [command for page in pages.values() for command in commands(page)]
    assert [start for start in ELSEWHERE if not any(command.startswith(start) for command in written)] == []
    assert [name for name in PREPARE if name not in pages] == []
    texts = {name: "\n".join(commands(page)) for name, page in pages.items()}
    assert [shown for name, values in VALUES.items() for shown in values if shown not in texts[name]] == []
