"""Build the C layer over its stub table with a sanitizer, and run its tests.

    python capi/tests/sanitize.py [--rounds 100] [address|thread ...]

Exits with 1 if a sanitizer reports anything. Needs gcc or clang with the sanitizers' libraries, but no installation.
"""

import argparse
import os
import runpy
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
CAPI: Final = HERE.parent
WALK: Final = runpy.run_path(str(HERE / "data" / "walk.py"))
SANITIZERS: Final = {"address": "-fsanitize=address,undefined", "thread": "-fsanitize=thread"}
HEADERS: Final = [CAPI / "include" / "triton" / "core" / name for name in ("tritonserver.h", "tritonrepoagent.h")]
OPTIONS: Final = {
    "ASAN_OPTIONS": "detect_leaks=1:halt_on_error=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}
MISSING: Final = {name: f'-D{name}="/nowhere"' for name in ("REPOAGENT_EXECUTABLE", "REPOAGENT_LIBPYTHON")}


class Build:
    """Programs of one sanitizer in one directory."""

    def __init__(self, compiler: str, sanitizer: str, directory: Path) -> None:
        self._compiler = compiler
        self._flags = ["-std=gnu11", "-g", "-O1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", "-w"]
        self._flags += [SANITIZERS[sanitizer], "-D_GNU_SOURCE", '-DREPOAGENT_LIBPYTHON_NAME="none"', *MISSING.values()]
        places = (CAPI / "include", CAPI / "src", CAPI / "api", HERE / "data", sysconfig.get_paths()["include"])
        self._flags += [f"-I{place}" for place in places]
        self._directory = directory
        self._layer: list[str] = []

    def works(self) -> bool:
        """Whether this machine compiles and runs programs with the sanitizer."""
        source = self._directory / "works.c"
        source.write_text("int main(void) { return 0; }\n")
        target = str(self._directory / "works")
        made = subprocess.run([self._compiler, *self._flags, source, "-o", target], capture_output=True, check=False)
        return made.returncode == 0 and subprocess.run([target], capture_output=True, check=False).returncode == 0

    def _compile(self, *arguments: str | Path) -> None:
        done = subprocess.run(
            [self._compiler, *self._flags, *map(str, arguments)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(done.stderr)

    def layer(self) -> list[str]:
        """The objects of the layer, its small API and the stub table."""
        if not self._layer:
            sources = [*sorted(CAPI.glob("src/*.c")), *sorted(CAPI.glob("api/*.c")), HERE / "data" / "stub_core.c"]
            for source in sources:
                target = self._directory / f"{source.parent.name}-{source.stem}.o"
                self._compile("-c", source, "-o", target)
                self._layer.append(str(target))
        return self._layer

    def program(self, source: Path, *flags: str) -> Path:
        """A program over the stub table."""
        target = self._directory / source.stem
        self._compile(*flags, source, *self.layer(), "-rdynamic", "-o", target, "-lpthread", "-ldl")
        return target

    def walk(self, own: bool) -> Path:
        """Every misuse of every function."""
        found = WALK["own_functions"](CAPI / "include" / "repoagent") if own else WALK["functions"](*HEADERS)
        source = self._directory / ("walk-own.c" if own else "walk.c")
        source.write_text(WALK["program"](found))
        return self.program(source, "-O0")  # Optimising its 28,000 lines takes longer than all the rest.

    def agent(self) -> Path:
        """An agent for the walk."""
        target = self._directory / "libtritonrepoagent_a.so"
        source = HERE / "data" / "recording_agent.c"
        self._compile("-fno-sanitize=all", "-shared", "-fPIC", '-DNAME="a"', source, "-o", target)
        return target


def runs(build: Build, sanitizer: str, rounds: int) -> Iterator[tuple[str, str, str]]:
    """Each program: its name, what it prints, and how its last line must begin."""
    data = HERE / "data"
    yield "races", run(build.program(data / "races.c"), str(rounds)), "deleted: 0, unanswered: 0, left: 0"
    yield "races of the small API", run(build.program(data / "own_races.c"), str(rounds)), "asked"
    if sanitizer != "thread":
        yield "life", run(build.program(data / "life.c")), "done"
        yield "walk", run(build.walk(own=False), AGENT=str(build.agent())), "calls: "
        yield "walk of the small API", run(build.walk(own=True)), "calls: "


def run(program: Path, *arguments: str, **environment: str) -> str:
    """What a program prints, and what a sanitizer reports of it."""
    command = [str(program), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **OPTIONS, **environment}, timeout=500, check=False
    )
    return done.stdout + (f"\n{done.stderr}\nexit code {done.returncode}" if done.returncode else "")


def main() -> int:
    """Run the programs with each sanitizer."""
    import tempfile

    parser = argparse.ArgumentParser()
    parser.add_argument("sanitizers", nargs="*", default=list(SANITIZERS))
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--compiler", default="cc")
    options = parser.parse_args()
    failed = False
    for sanitizer in options.sanitizers:
        with tempfile.TemporaryDirectory() as made:
            build = Build(options.compiler, sanitizer, Path(made))
            if not build.works():
                print(f"{sanitizer}: {options.compiler} does not offer {SANITIZERS[sanitizer]} on this machine")
                return 1
            for name, printed, last in runs(build, sanitizer, options.rounds):
                lines = printed.splitlines()
                good = len(lines) == 1 and lines[0].startswith(last)
                failed |= not good
                print(f"{sanitizer}: {name}: {lines[-1] if good else printed}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
