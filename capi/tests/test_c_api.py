"""repoagent's own C API: its headers, its examples, every misuse, and the ways to link it."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
REPOSITORY = EXAMPLES / "capi" / "repository"
WALK = runpy.run_path(str(HERE / "data" / "walk.py"))
VALGRIND = ("valgrind", "--quiet", "--error-exitcode=9", "--leak-check=full", "--show-leak-kinds=definite,indirect")


@pytest.fixture(scope="module")
def installed(capi: Path) -> Path:
    if not (capi / "include" / "repoagent").is_dir():
        pytest.skip("repoagent-capi lacks our C API: pip install ./capi --config-settings cmake.define.WITH_C_API=ON")
    return capi


@pytest.fixture(scope="module")
def examples(installed: Path, compile_c: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples were built, by their Makefiles."""
    if shutil.which("make") is None:
        pytest.skip("no make on this machine")
    out = tmp_path_factory.mktemp("examples")
    for name in ("infer", "many", "load", "generate", "agent"):
        command = ["make", "-C", str(EXAMPLES / "capi" / name), f"OUT={out}", f"PYTHON={sys.executable}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return out


def run(*command: Path | str, code: int = 0) -> str:
    """What a program prints, without any environment variable."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env={}, timeout=200, check=False)
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("header", ["agent", "capi", "error", "model", "request", "server", "tensor"])
def test_each_header_compiles_alone(installed: Path, compile_c: Any, header: str, tmp_path: Path) -> None:
    source = tmp_path / "alone.c"
    source.write_text(f'#include "repoagent/{header}.h"\n#include "repoagent/capi.h"\nint main(void) {{ return 0; }}\n')
    compile_c.program(str(source), tmp_path / "alone")


def test_the_api_is_small_and_the_private_header_is_not_installed(installed: Path) -> None:
    found = WALK["own_functions"](installed / "include" / "repoagent")
    assert 30 < len(found) + 1 <= 40
    assert [it.name for it in found if it.result != "repoagent_error" and not it.name.endswith("_create")] == []
    assert list(installed.rglob("api.h")) == list(installed.rglob("layer.h")) == []


def test_infer(examples: Path) -> None:
    assert run(examples / "infer", REPOSITORY) == "1\n2\n3\n4\n"


@pytest.mark.parametrize("name", ["infer", "many", "load", "generate"])
def test_an_example_without_arguments_prints_its_usage(examples: Path, name: str) -> None:
    done = subprocess.run([str(examples / name)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(rf"usage: {name} REPOSITORY[A-Z_ ]*\n", done.stderr)


def test_flags_for_a_compiler_have_to_be_asked_for() -> None:
    pytest.importorskip("repoagent_capi")
    command = [sys.executable, "-m", "repoagent_capi"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--cflags, --libs, or both" in done.stderr


def test_the_library_prints_nothing_also_of_what_fails(examples: Path, tmp_path: Path) -> None:
    command = [str(examples / "infer"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env={}, timeout=200, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()  # the example's own
    assert line.startswith("repoagent_model_load(model): failed to load 'echo'")


def test_many_in_flight(examples: Path) -> None:
    assert run(examples / "many", REPOSITORY) == "200 answers, sum 19900\n"


def test_load_and_unload_through_an_agent_in_c(examples: Path, tmp_path: Path) -> None:
    printed = run(examples / "load", REPOSITORY, examples, "guarded")
    assert '"outcome": "loaded"' in printed
    assert '"agent": "readme"' in printed
    shutil.copytree(REPOSITORY, tmp_path / "repository")
    (tmp_path / "repository" / "guarded" / "README.md").unlink()
    printed = run(examples / "load", tmp_path / "repository", examples, "guarded")
    assert printed.startswith("refused: failed to load 'guarded'")
    assert "agent 'readme': the model has no readme" in printed


def test_generate_text(examples: Path, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "llm" / "repository", tmp_path / "repository")
    subprocess.run([sys.executable, EXAMPLES / "llm" / "build.py", tmp_path / "repository"], check=True)
    assert run(examples / "generate", tmp_path / "repository", "sums", "47+85:", "40").strip().endswith("132")


@pytest.fixture(scope="module")
def walk(installed: Path, compile_c: Any, stub: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("walk-own")
    source = directory / "walk.c"
    source.write_text(WALK["program"](WALK["own_functions"](installed / "include" / "repoagent")))
    flags = [f"-I{HERE.parent / 'src'}", f"-I{HERE / 'data'}", f"-L{installed / 'lib'}"]
    flags += [f"-Wl,-rpath,{installed / 'lib'}", "-Wno-unused-function", *stub]
    made: Path = compile_c.program(str(source), directory / "walk", *flags, "-lrepoagent")
    return made


def test_every_function_answers_every_misuse(walk: Path) -> None:
    lines = run(walk).splitlines()
    assert lines[:-1] == []
    assert int(lines[-1].removeprefix("calls: ")) > 150


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind on this machine")
def test_no_memory_is_lost_or_misused_in_any_misuse(walk: Path) -> None:
    assert run(*[shutil.which(VALGRIND[0]) or "", *VALGRIND[1:]], walk).startswith("calls: ")


# Answers a request when there is a byte for it.
HELD = """
import os
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        self.pipe = os.open({pipe!r}, os.O_RDONLY)
    def execute(self, requests):
        os.read(self.pipe, 1)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
            for request in requests
        ]
    def finalize(self):
        os.close(self.pipe)
"""


def test_handles_in_use_can_be_deleted(installed: Path, compile_c: Any, tmp_path: Path) -> None:
    """C3: nor does a refused submit leave the answer of the one before."""
    model, pipe = tmp_path / "repository" / "held", tmp_path / "pipe"
    os.mkfifo(pipe)
    shutil.copytree(REPOSITORY / "echo", model)
    (model / "1" / "model.py").write_text(HELD.format(pipe=str(pipe)))
    library = installed / "lib"
    flags = (f"-L{library}", "-lrepoagent", f"-Wl,-rpath,{library}", "-lpthread", f"-I{EXAMPLES / 'capi'}")
    program = compile_c.program("in_use.c", tmp_path / "in_use", *flags)
    assert run(program, model.parent, pipe) == "calls after the delete: 0\noutput: 7\nhandles: 1\n"


def test_the_static_library_is_whole_and_keeps_its_inner_names(installed: Path, compile_c: Any, tmp_path: Path) -> None:
    source = tmp_path / "main.c"
    names = ("fail", "grow", "publish", "handle_new", "settle", "start_python")  # Inner functions of the library.
    own = "\n".join(f"int {name}(void);\nint {name}(void) {{ return 1; }}" for name in names)
    source.write_text(f'{own}\n#include "{EXAMPLES / "capi" / "infer" / "main.c"}"\n')
    archive = installed / "lib" / "librepoagent.a"
    flags = ["-rdynamic", "-Wl,--whole-archive", str(archive), "-Wl,--no-whole-archive", "-lpthread", "-ldl"]
    flags.append(f"-I{EXAMPLES / 'capi' / 'infer'}")
    program = compile_c.program(str(source), tmp_path / "infer", *flags)
    assert run(program, REPOSITORY) == "1\n2\n3\n4\n"


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="no pkg-config on this machine")
def test_pkg_config_knows_it(installed: Path, compile_c: Any, tmp_path: Path) -> None:
    done = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "repoagent"],
        env={**os.environ, "PKG_CONFIG_PATH": str(installed / "lib" / "pkgconfig")},
        capture_output=True,
        text=True,
        check=True,
    )
    program = compile_c.program(str(EXAMPLES / "capi" / "infer" / "main.c"), tmp_path / "infer", *done.stdout.split())
    assert run(program, REPOSITORY) == "1\n2\n3\n4\n"


@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake on this machine")
@pytest.mark.parametrize("target", ["repoagent", "static"])
def test_cmake_finds_it(installed: Path, compile_c: Any, target: str, tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(user LANGUAGES C)\nfind_package(repoagent REQUIRED)\n"
        f"add_executable(infer {EXAMPLES / 'capi' / 'infer' / 'main.c'})\n"
        f"target_link_libraries(infer repoagent::{target})\n"
    )
    build = str(tmp_path / "build")
    configure = ["cmake", "-S", str(tmp_path), "-B", build, f"-DCMAKE_PREFIX_PATH={installed}"]
    for command in (configure, ["cmake", "--build", build]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert run(tmp_path / "build" / "infer", REPOSITORY) == "1\n2\n3\n4\n"
