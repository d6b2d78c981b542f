"""Soak test of C programs: servers made and deleted, and threads whose callbacks call back in; longer than the tests.

    python benchmarks/soak_capi.py [--servers 100] [--runs 20]

Needs repoagent-capi and a C compiler. Exits with 1 if memory grows, a handle is left, or a program does not end.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import repoagent_capi

SOURCE = Path(__file__).parents[1] / "capi" / "tests" / "data" / "embed.c"
CONFIG = """backend: "identity"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
"""


def main() -> int:
    """Run the program in its modes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--servers", type=int, default=100)
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as made:
        repository, program = Path(made) / "repository", Path(made) / "embed"
        (repository / "identity" / "1").mkdir(parents=True)
        (repository / "identity" / "config.pbtxt").write_text(CONFIG)
        library = repoagent_capi.LIBRARY.parent
        flags = [f"-I{repoagent_capi.INCLUDE}", f"-L{library}", "-ltritonserver", f"-Wl,-rpath,{library}", "-lpthread"]
        subprocess.run(["cc", "-std=c99", "-D_GNU_SOURCE", str(SOURCE), "-o", str(program), *flags], check=True)
        line = run(program, "again", str(repository), str(options.servers))
        print(f"{options.servers} servers: {line}")
        handles, _, kib = line.partition(", KiB more: ")
        failed |= handles != "handles: 1" or int(kib) > 4000
        for _ in range(options.runs):
            line = run(program, "threads", str(repository))
            failed |= line != "done: 640, wrong: 0, handles: 1"
        print(f"{options.runs} runs of 32 threads: {line}")
    return int(failed)


def run(program: Path, *arguments: str) -> str:
    """What the program prints."""
    done = subprocess.run([program, *arguments], stdout=subprocess.PIPE, text=True, env={}, timeout=600, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
