"""The C layer by itself, over a table without Python: every misuse of every function, and no memory lost or misused."""

import os
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

WALK = runpy.run_path(str(Path(__file__).parent / "data" / "walk.py"))
functions, program = WALK["functions"], WALK["program"]
SOURCES = Path(__file__).parents[1] / "src"
VALGRIND = ("valgrind", "--quiet", "--error-exitcode=9", "--leak-check=full", "--show-leak-kinds=definite,indirect")


@pytest.fixture(scope="module")
def build(compile_c: Any, capi: Path, stub: list[str], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes a program over the stub table of a source."""

    def make(source: Path) -> Path:
        target = tmp_path_factory.mktemp("over-stub") / source.stem
        library = capi / "lib"
        flags = (f"-I{SOURCES}", f"-I{Path(__file__).parent / 'data'}", f"-L{library}", f"-Wl,-rpath,{library}")
        made: Path = compile_c.program(source, target, *flags, "-Wno-unused-function", *stub, "-ltritonserver")
        return made

    return make


@pytest.fixture(scope="module")
def walk(build: Any, compile_c: Any, capi: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The walk, and an agent for it."""
    directory = tmp_path_factory.mktemp("walk")
    headers = [capi / "include" / "triton" / "core" / name for name in ("tritonserver.h", "tritonrepoagent.h")]
    (directory / "walk.c").write_text(program(functions(*headers)))
    return build(directory / "walk.c"), compile_c.agent("recording_agent.c", "a", directory)


def run(program: Path, *before: str, **environment: str) -> str:
    done = subprocess.run(
        [*before, str(program)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


def test_the_headers_have_all_functions_and_the_library_exports_them(capi: Path) -> None:
    """C9: and exports nothing else."""
    headers = [capi / "include" / "triton" / "core" / name for name in ("tritonserver.h", "tritonrepoagent.h")]
    assert [len(functions(header)) for header in headers] == [172, 12]
    if shutil.which("nm") is None:
        pytest.skip("no nm on this machine")
    listing = subprocess.run(
        ["nm", "-D", capi / "lib" / "libtritonserver.so"], capture_output=True, text=True, check=True
    )
    exported = {line.split()[2] for line in listing.stdout.splitlines() if " T " in line}
    own = capi / "include" / "repoagent"
    names = {function.name for function in functions(*headers)}
    if own.is_dir():
        api = {function.name for function in WALK["own_functions"](own)} | {"repoagent_agent_call"}
        assert f"is a C API of {len(api)} functions" in (SOURCES.parents[1] / "docs" / "capi.md").read_text()
        names |= api
    inner = {"repoagent_core_install", "repoagent_living_handles", "repoagent_copied_outputs"}
    assert exported == names | inner, "what tests and our extension need, and nothing else that a header does not have"


def test_every_function_answers_every_misuse(walk: tuple[Path, Path]) -> None:
    program, agent = walk
    lines = run(program, AGENT=str(agent)).splitlines()
    assert lines[:-1] == []
    assert int(lines[-1].removeprefix("calls: ")) > 1000


def test_every_object_lives_as_the_headers_promise(build: Any) -> None:
    assert run(build(Path(__file__).parent / "data" / "life.c")) == "done\n"


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind on this machine")
def test_no_memory_is_lost_or_misused_in_the_life_of_every_object(build: Any) -> None:
    assert run(build(Path(__file__).parent / "data" / "life.c"), *VALGRIND) == "done\n"


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind on this machine")
def test_no_memory_is_lost_or_misused_in_any_misuse(walk: tuple[Path, Path]) -> None:
    program, agent = walk
    assert run(program, *VALGRIND, AGENT=str(agent)).startswith("calls: ")
