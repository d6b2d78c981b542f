"""What the tests of ``deploy/`` share: the files, and the programs of other projects that check them."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from repoagent_server.flags.config_file import ENVIRONMENT_PREFIX
from repoagent_server.program.serve_command import serve
from repoagent_server.program.tritonserver import defaults

TREE: Final = Path(__file__).resolve().parents[2]
TOOLS: Final = TREE / ".venvs" / "deploy" / "bin"

Tool = Callable[[str], str]
Problems = Callable[[list[dict[str, Any]]], list[list[str]]]


@pytest.fixture(scope="session")
def deploy() -> Path:
    """The directory with what is deployed."""
    return TREE / "deploy"


@pytest.fixture(scope="session")
def tool() -> Tool:
    """Where a program is; the test is skipped where it is not, unless the environment forbids that."""

    def find(name: str) -> str:
        found = shutil.which(name) or shutil.which(str(TOOLS / name))
        if found is None and os.environ.get("REPOAGENT_TESTS_NEED_DEPLOY_TOOLS") == "1":
            pytest.fail(f"{name} is missing: make deploy-tools")
        if found is None:
            pytest.skip(f"{name} is missing: make deploy-tools")
        return found

    return find


@pytest.fixture(scope="session")
def problems() -> Iterator[Problems]:
    """What is wrong with each of some manifests, according to the projects that define them."""
    command = [sys.executable, str(Path(__file__).parent / "generated_models.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        given, results = program.stdin, program.stdout

        def check(manifests: list[dict[str, Any]]) -> list[list[str]]:
            print(json.dumps(manifests), file=given, flush=True)
            line = results.readline()
            assert line, f"it ended with {program.wait()}"
            found: list[list[str]] = json.loads(line)
            return found

        yield check
        given.close()
    assert program.returncode == 0


@pytest.fixture(scope="session")
def flags_of() -> Callable[[list[str]], dict[str, Any]]:
    """What the program makes of the arguments of a container; wrong ones are an error."""

    def parse(arguments: list[str]) -> dict[str, Any]:
        program, *flags = arguments
        assert program == "tritonserver"
        with serve.make_context(program, flags, default_map=defaults({})) as context:
            return context.params

    return parse


@pytest.fixture(scope="session")
def variables() -> set[str]:
    """The names of the environment variables that stand for flags."""
    return {f"{ENVIRONMENT_PREFIX}_{parameter.name.upper()}" for parameter in serve.params if parameter.name}
