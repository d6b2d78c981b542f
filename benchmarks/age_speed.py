"""Decryption by the age library of the decrypt agent against ``age`` and ``pyrage``, and its peak memory.

    python benchmarks/age_speed.py                  # 2 GiB in one file and in 200; needs 10 GiB of /dev/shm
    python benchmarks/age_speed.py --size 64M       # a quick look

Every tool runs as a process of its own, from the same files on a memory filesystem to the same, in turns, after a round
that does not count (it makes a virtual machine's host hand over the memory); the median of the others counts. "cpu" is
user and system time, which says more than the clock on a busy machine. A peer that is not installed prints MISSING and
makes the exit status 1 (``apt install age``, ``pip install pyrage``), as does output that differs.
"""

import argparse
import filecmp
import importlib.util
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from repoagent_decrypt.age.files import encrypt_file
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity

CORES = len(os.sched_getaffinity(0))
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
PEAK = """
from pathlib import Path
status = Path("/proc/self/status").read_text()
print(status[status.index("VmHWM:"):].split()[1])
"""
OURS = (
    """
import sys
from pathlib import Path
from repoagent_decrypt.age.files import decrypt_file
from repoagent_decrypt.age.keys import parse_identities
from repoagent_decrypt.files.positional import Workers
key, source, target = map(Path, sys.argv[1:])
identities = parse_identities(key.read_bytes(), "key").native
with Workers() as workers:
    for path in source.iterdir():
        decrypt_file(path, target / path.name, identities, workers=workers)
"""
    + PEAK
)
PYRAGE = (
    """
import sys
from pathlib import Path
import pyrage
key, source, target = map(Path, sys.argv[1:])
identity = pyrage.x25519.Identity.from_str(key.read_text().strip())
for path in source.iterdir():
    pyrage.decrypt_file(str(path), str(target / path.name), [identity])
"""
    + PEAK
)
AGE = 'for path in "$2"/*; do age -d -i "$1" -o "$3/${path##*/}" "$path" || exit 1; done'


@dataclass(frozen=True, slots=True)
class Tool:
    """A way to decrypt all files of one directory into another: ``argv(key, source, target)``."""

    name: str
    installed: bool
    argv: Callable[[Path, Path, Path], list[str]]


def python(code: str) -> Callable[[Path, Path, Path], list[str]]:
    return lambda key, source, target: [sys.executable, "-c", code, str(key), str(source), str(target)]


TOOLS = [
    Tool("repoagent", True, python(OURS)),
    Tool("pyrage", importlib.util.find_spec("pyrage") is not None, python(PYRAGE)),
    Tool(
        "age",
        shutil.which("age") is not None,
        lambda key, source, target: ["sh", "-c", AGE, "sh", str(key), str(source), str(target)],
    ),
]


@dataclass(frozen=True, slots=True)
class Work:
    """The key, and ``count`` encrypted files of ``size`` bytes together."""

    key: Path
    plain: Path
    sealed: Path
    size: int


@contextmanager
def work(directory: Path, size: int, count: int) -> Iterator[Work]:
    """Make files of random content and encrypt them."""
    with tempfile.TemporaryDirectory(prefix="age-speed-", dir=directory) as name:
        root = Path(name)
        identity = X25519Identity.generate()
        made = Work(root / "key", root / "plain", root / "sealed", size // count * count)
        made.key.write_text(identity.export() + "\n")
        made.plain.mkdir()
        made.sealed.mkdir()
        for number in range(count):
            write_random(made.plain / f"{number:03}", size // count)
            encrypt_file(made.plain / f"{number:03}", made.sealed / f"{number:03}", [identity.recipient])
        yield made


def write_random(path: Path, size: int) -> None:
    block = os.urandom(1 << 20)
    with path.open("wb") as file:
        for start in range(0, size, len(block)):
            file.write(block[: size - start])


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run: seconds on the clock and of all CPUs, and the peak of the process in KiB (0 if it does not tell)."""

    seconds: float
    cpu: float
    peak: int


def run(tool: Tool, job: Work) -> Cost:
    """Decrypt everything once, and check the result."""
    target = job.key.parent / "opened"
    target.mkdir()
    try:
        before = cpu_of_children()
        start = time.perf_counter()
        done = subprocess.run(tool.argv(job.key, job.sealed, target), capture_output=True, text=True, check=True)
        cost = Cost(time.perf_counter() - start, cpu_of_children() - before, int(done.stdout or 0))
        check_same(job.plain, target)
        return cost
    finally:
        shutil.rmtree(target)


def cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def check_same(plain: Path, opened: Path) -> None:
    names = sorted(path.name for path in plain.iterdir())
    same, different, missing = filecmp.cmpfiles(plain, opened, names, shallow=False)
    if len(same) != len(names):
        sys.exit(f"WRONG OUTPUT: {[*different, *missing]}")


def compare(job: Work, count: int, rounds: int) -> bool:
    """Print a line for each tool; false if one is missing."""
    installed = [tool for tool in TOOLS if tool.installed]
    costs: dict[str, list[Cost]] = {tool.name: [] for tool in installed}
    for number in range(rounds + 1):
        for tool in installed:
            cost = run(tool, job)
            if number:
                costs[tool.name].append(cost)
    files = "1 file" if count == 1 else f"{count} files"
    print(f"\n{job.size / UNITS['M']:.0f} MiB in {files}, {CORES} cores, median of {rounds}")
    medians = {name: median(each) for name, each in costs.items()}
    for tool in TOOLS:
        found = medians.get(tool.name)
        print(f"  {tool.name:<10} {describe(found, medians['repoagent'], job.size) if found else 'MISSING'}")
    return len(installed) == len(TOOLS)


def median(costs: list[Cost]) -> Cost:
    return Cost(
        seconds=statistics.median(cost.seconds for cost in costs),
        cpu=statistics.median(cost.cpu for cost in costs),
        peak=max(cost.peak for cost in costs),
    )


def describe(cost: Cost, ours: Cost, size: int) -> str:
    text = f"{cost.seconds:7.2f} s  cpu {cost.cpu:6.2f} s {size / cost.seconds / 1e9:6.2f} GB/s"
    if cost is ours:
        return text
    return f"{text}   repoagent is {cost.seconds / ours.seconds:.2f} times as fast, cpu {cost.cpu / ours.cpu:.2f}"


def peaks(directory: Path, sizes: list[int]) -> None:
    """Print the peak memory of our process for files of several sizes."""
    print("\npeak resident memory of the repoagent process")
    for size in sizes:
        with work(directory, size, 1) as job:
            print(f"  {size / UNITS['M']:6.0f} MiB file: {run(TOOLS[0], job).peak / 1024:6.1f} MiB")


def parse_size(text: str) -> int:
    return int(text[:-1]) * UNITS[text[-1].upper()] if text[-1:].upper() in UNITS else int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=parse_size, default=2 << 30, help="bytes in all, for example 64M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"), help="where the files go")
    options = parser.parse_args()
    complete = True
    for count in (1, 200):
        with work(options.directory, options.size, count) as job:
            complete &= compare(job, count, options.rounds)
    peaks(options.directory, [options.size // 8, options.size // 2, options.size * 2])
    sys.exit(0 if complete else 1)


if __name__ == "__main__":
    main()
