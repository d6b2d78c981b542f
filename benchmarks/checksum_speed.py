"""The hashing of files (``repoagent.api.digest_files``) against ``sha256sum`` and ``b3sum``.

    python benchmarks/checksum_speed.py                 # 2 GiB in one file and in 200; needs 2 GiB of room
    python benchmarks/checksum_speed.py --size 64M      # a quick look

Every tool runs as a process of its own over the same warm files, in turns; the median of the rounds counts. The limit
is what ``hashlib`` does with a buffer in memory, one thread for each core. A peer that is not installed prints MISSING
and makes the exit status 1 (Debian: ``apt install b3sum coreutils``).
"""

import hashlib
import os
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from measures import Call, Cost, fill, in_turns, options_of, run, seconds, size_of, table
from servers import report_missing

CORES = len(os.sched_getaffinity(0))
OURS = """
import sys
from pathlib import Path
from repoagent.api import digest_files
root = Path(sys.argv[2])
jobs = {path.name: [sys.argv[1].lower()] for path in root.iterdir()}
for name, found in digest_files(root, jobs).items():
    print(*found.values(), name)
"""


@dataclass(frozen=True, slots=True)
class Tool:
    """A way to hash all files of a directory: ours, or the program ``peer``, a process per core if ``spread``."""

    algorithm: str
    peer: str = ""
    spread: bool = False

    def __str__(self) -> str:
        return f"xargs -P{CORES} {self.peer}" if self.spread else self.peer or "repoagent"

    def hash(self, root: Path) -> Cost:
        if not self.peer:
            return run([sys.executable, "-c", OURS, self.algorithm, root])
        if self.spread:
            return run(["sh", "-c", f'ls -d "$0"/* | xargs -n 1 -P {CORES} {self.peer}', root])
        return run([self.peer, *root.iterdir()])


TOOLS = (
    Tool("SHA256"),
    Tool("SHA256", "sha256sum"),
    Tool("SHA256", "sha256sum", spread=True),
    Tool("BLAKE3"),
    Tool("BLAKE3", "b3sum"),
)


def limit(algorithm: str, threads: int) -> float:
    """Bytes per second that the digest itself allows, with nothing read."""
    data = os.urandom(64 << 20)
    if algorithm == "BLAKE3":
        from blake3 import blake3

        jobs: list[Call] = [lambda: blake3(data, max_threads=threads)]
    else:
        jobs = [lambda: hashlib.sha256(data)] * threads
    with ThreadPoolExecutor(len(jobs)) as pool:
        least = min(seconds(lambda: list(pool.map(lambda job: job(), jobs))) for _ in range(5))
    return len(jobs) * len(data) / least


def rows_of(costs: dict[Tool, list[Cost]], size: int, files: int) -> list[tuple[str, ...]]:
    """The tools, which must agree about the digests, and what the digests allow."""
    speeds = {tool: size / Cost.median(each).seconds for tool, each in costs.items()}
    rows: list[tuple[str, ...]] = []
    for ours in (tool for tool in TOOLS if not tool.peer):
        group = [tool for tool in speeds if tool.algorithm == ours.algorithm]
        found = {min(line.split()[0] for line in costs[tool][0].stdout.splitlines()) for tool in group}
        assert len(found) == 1, f"the tools disagree: {found}"
        # One file of SHA-256 is one chain of blocks: a second core can only read ahead.
        most = limit(ours.algorithm, 1 if files == 1 and ours.algorithm != "BLAKE3" else CORES)
        for name, speed in [*((str(tool), speeds[tool]) for tool in group), ("limit of the digest", most)]:
            rows.append((ours.algorithm, name, f"{speed / 1e9:.2f}", f"{speeds[ours] / speed:.2f}"))
    return rows


def main() -> int:
    options = options_of(
        __doc__,
        size=("2G", "bytes in all, such as 64M"),
        files=(200, "files in the second measurement"),
        rounds=3,
        directory=(Path("/dev/shm"), "where to write"),
    )
    size = size_of(options.size)
    missing = {tool.peer: "make bench-peers" for tool in TOOLS if tool.peer and shutil.which(tool.peer) is None}
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        for files in (1, options.files):
            root = fill(Path(directory) / str(files), size, files)
            takes = {tool: partial(tool.hash, root) for tool in TOOLS if tool.peer not in missing}
            TOOLS[0].hash(root)
            print(f"\n{size >> 20} MiB in {files} files, {CORES} cores")
            rows = rows_of(in_turns(takes, options.rounds), size, files)
            print(table(("", "", "GB/s", "repoagent is so many times as fast"), rows))
            shutil.rmtree(root)
    return report_missing(missing)


if __name__ == "__main__":
    sys.exit(main())
