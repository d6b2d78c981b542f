"""The checksum agent's hashing against ``sha256sum`` and ``b3sum``, and its peak memory.

    python benchmarks/checksum_speed.py                 # 2 GiB in one file and in 200; needs 4 GiB of room
    python benchmarks/checksum_speed.py --size 64M      # a quick look

Every tool runs as a process of its own over the same warm files, in turns; the median of the rounds counts. The limit
is what ``hashlib`` does with a buffer in memory, one thread for each core. A peer that is not installed prints MISSING
and makes the exit status 1 (Debian: ``apt install b3sum coreutils``).
"""

import argparse
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

CORES = len(os.sched_getaffinity(0))
BLOCK = 1 << 20
OURS = """
import sys
from pathlib import Path
from repoagent_checksum.algorithms import find_algorithm
from repoagent_checksum.hashing import digest_files
root = Path(sys.argv[2])
jobs = {path.name: [find_algorithm(sys.argv[1])] for path in root.iterdir()}
for name, found in digest_files(root, jobs).items():
    print(*found.values(), name)
status = Path("/proc/self/status").read_text()
print(status[status.index("VmHWM:"):].split()[1], file=sys.stderr)
"""


@dataclass(frozen=True, slots=True)
class Tool:
    """A way to hash all files of a directory. ``peer`` is the program it needs, "" for ours."""

    name: str
    algorithm: str
    argv: Callable[[Path], list[str]]
    peer: str = ""


def ours(algorithm: str) -> Tool:
    return Tool("repoagent", algorithm, lambda root: [sys.executable, "-c", OURS, algorithm, str(root)])


def peer(program: str, algorithm: str) -> Tool:
    return Tool(program, algorithm, lambda root: [program, *map(str, root.iterdir())], program)


def spread(program: str, algorithm: str) -> Tool:
    """The peer with one process for each core, as a person with ``xargs`` would."""
    command = ["sh", "-c", f'ls -d "$0"/* | xargs -n 1 -P {CORES} {program}']
    return Tool(f"xargs -P{CORES} {program}", algorithm, lambda root: [*command, str(root)], program)


TOOLS = (
    ours("SHA256"),
    peer("sha256sum", "SHA256"),
    spread("sha256sum", "SHA256"),
    ours("BLAKE3"),
    peer("b3sum", "BLAKE3"),
)


def size_of(text: str) -> int:
    """``64M`` or ``2G`` in bytes."""
    return int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1].upper()]


def fill(directory: Path, size: int, files: int) -> Path:
    """Write ``size`` random bytes in ``files`` equal files, and return their directory."""
    directory.mkdir()
    block = os.urandom(BLOCK)
    for index in range(files):
        left = size // files
        with (directory / f"part{index:04}").open("wb") as file:
            while left:
                left -= file.write(block[:left])
    return directory


def run(tool: Tool, root: Path) -> tuple[float, str, str]:
    """Seconds, what was printed on stderr (of ours the peak memory in KiB), and the smallest of the digests."""
    started = time.perf_counter()
    done = subprocess.run(tool.argv(root), capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{tool.name} failed with status {done.returncode}: {done.stderr}")
    return seconds, done.stderr, min(line.split()[0] for line in done.stdout.splitlines())


def compare(root: Path, size: int, tools: Sequence[Tool], rounds: int) -> dict[Tool, float]:
    """Bytes per second of every tool; they must agree about the digests."""
    seconds: dict[Tool, list[float]] = {tool: [] for tool in tools}
    digests: dict[str, set[str]] = {}
    for _ in range(rounds):
        for tool in tools:
            taken, _, digest = run(tool, root)
            seconds[tool].append(taken)
            digests.setdefault(tool.algorithm, set()).add(digest)
    assert all(len(found) == 1 for found in digests.values()), f"the tools disagree: {digests}"
    return {tool: size / statistics.median(taken) for tool, taken in seconds.items()}


def limit(algorithm: str, threads: int) -> float:
    """Bytes per second that the digest itself allows, with nothing read."""
    data = os.urandom(64 << 20)
    if algorithm == "BLAKE3":
        from blake3 import blake3

        jobs: list[Callable[[], object]] = [lambda: blake3(data, max_threads=threads)]
    else:
        jobs = [lambda: hashlib.sha256(data)] * threads
    best = 0.0
    with ThreadPoolExecutor(len(jobs)) as pool:
        for _ in range(5):
            started = time.perf_counter()
            for future in [pool.submit(job) for job in jobs]:
                future.result()
            best = max(best, len(jobs) * len(data) / (time.perf_counter() - started))
    return best


def print_table(title: str, speeds: dict[Tool, float], files: int) -> None:
    print(f"\n{title}")
    base = {tool.algorithm: speed for tool, speed in speeds.items() if not tool.peer}
    for algorithm, speed in base.items():
        # One file of SHA-256 is one chain of blocks: a second core can only read ahead.
        most = limit(algorithm, 1 if files == 1 and algorithm != "BLAKE3" else CORES)
        print_row(algorithm, "repoagent", speed, "")
        print_row(algorithm, "limit of the digest", most, f"repoagent is {speed / most:.2f} of it")
        for tool, other in speeds.items():
            if tool.peer and tool.algorithm == algorithm:
                print_row(algorithm, tool.name, other, f"repoagent is {speed / other:.2f} times as fast")


def print_row(algorithm: str, name: str, speed: float, remark: str) -> None:
    print(f"  {algorithm:7} {name:20} {speed / 1e9:6.2f} GB/s   {remark}".rstrip())


def print_memory(directory: Path, size: int) -> None:
    print("\npeak resident memory")
    for part in (size // 8, size // 2, size * 2):
        root = fill(directory / "memory", part, 1)
        peaks = {tool: run(tool, root)[1] for tool in TOOLS if not tool.peer}
        shutil.rmtree(root)
        texts = (f"{tool.algorithm} {int(peak) / 1024:.0f} MiB" for tool, peak in peaks.items())
        print(f"  one file of {part >> 20:5} MiB: {', '.join(texts)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=size_of, default="2G", help="bytes in all, such as 64M (default 2G)")
    parser.add_argument("--files", type=int, default=200, help="files in the second measurement (default 200)")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"), help="where to write (default /dev/shm)")
    options = parser.parse_args()
    missing = sorted({tool.peer for tool in TOOLS if tool.peer and shutil.which(tool.peer) is None})
    tools = [tool for tool in TOOLS if tool.peer not in missing]
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        for files in (1, options.files):
            root = fill(Path(directory) / str(files), options.size, files)
            run(tools[0], root)
            speeds = compare(root, options.size, tools, options.rounds)
            print_table(f"{options.size >> 20} MiB in {files} file{'s' * (files > 1)}, {CORES} cores", speeds, files)
            shutil.rmtree(root)
        print_memory(Path(directory), options.size)
    for name in missing:
        print(f"MISSING {name}: apt install {'b3sum' if name == 'b3sum' else 'coreutils'}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
