"""What benchmarks measure with: turns, medians, ratios, seconds of processors, quiet moments; options and tables."""

import argparse
import inspect
import os
import platform
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar

from servers import Server

# For the stand-ins of the tests and the checkpoints of the examples; behind all others, so that they hide nothing.
sys.path.append(str(Path(__file__).parents[1]))

QUIET_CORES: Final = 0.12
"""A measurement is quiet if other processes took at most so much meanwhile."""
QUIET_SHARE: Final = 0.1
"""The same, of all cores together."""
THREADS: Final = 8
BLOCK: Final = 200
"""How many calls one variant makes before it is another one's turn."""

Call = Callable[[], object]
Key = TypeVar("Key", bound=Hashable)
Taken = TypeVar("Taken")


# Options and tables.


def options_of(doc: str | None, **options: Any) -> argparse.Namespace:
    """The command line. Each option has its default, or a pair of default and help; a list's takes several."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, given in options.items():
        default, text = given if isinstance(given, tuple) else (given, None)
        flag = f"--{name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true", help=text)
        elif isinstance(default, list):
            parser.add_argument(flag, type=type(default[0]), nargs="+", default=default, help=text)
        elif inspect.isclass(default):
            parser.add_argument(flag, type=default, help=text)
        else:
            parser.add_argument(
                flag, type=Path if isinstance(default, Path) else type(default), default=default, help=text
            )
    return parser.parse_args()


def size_of(text: str) -> int:
    """``64M`` or ``2G`` in bytes."""
    return int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1].upper()]


def markdown(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as their cells; the first to the left, all others to the right."""
    lines = [[str(cell) for cell in line] for line in (head, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.rjust(width) if number else cell.ljust(width) for number, (cell, width) in enumerate(cells))
        for cells in (list(zip(line, widths, strict=True)) for line in lines)
    )


def machine() -> str:
    """The cores, the processor, the system and Python."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return (
        f"{os.cpu_count()} cores ({next(named, platform.machine())}), {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )


# Turns.


def in_turns(takes: Mapping[Key, Callable[[], Taken]], rounds: int, *, warm: int = 0) -> dict[Key, list[Taken]]:
    """What each gives, round after round, so that a slow moment of the machine hits all; ``warm`` rounds come first."""
    found: dict[Key, list[Taken]] = {name: [] for name in takes}
    for number in range(warm + rounds):
        for name, take in takes.items():
            taken = take()
            if number >= warm:
                found[name].append(taken)
    return found


def medians(samples: Mapping[Key, Sequence[float]]) -> dict[Key, float]:
    return {name: statistics.median(values) for name, values in samples.items()}


def ratio(samples: Mapping[Key, Sequence[float]], name: Key, other: Key) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(one / two for one, two in zip(samples[name], samples[other], strict=True))


def columns(samples: Iterable[Sequence[float]]) -> list[float]:
    """The median of each column."""
    return [statistics.median(column) for column in zip(*samples, strict=True)]


def seconds(work: Call) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def call_medians(calls: Mapping[str, Call], rounds: int) -> dict[str, float]:
    """The median microseconds of each of ``calls``, which take turns in blocks."""

    def block(call: Call) -> list[float]:
        return [seconds(call) for _ in range(BLOCK)]

    blocks = in_turns({name: partial(block, call) for name, call in calls.items()}, rounds // BLOCK, warm=1)
    return {name: statistics.median(chain.from_iterable(each)) * 1e6 for name, each in blocks.items()}


def call_rate(call: Call, duration: float, threads: int = THREADS) -> float:
    """Calls per second of ``threads`` threads together."""
    stop, begun, counts = time.monotonic() + duration, time.monotonic(), [0] * threads

    def work(index: int) -> None:
        while time.monotonic() < stop:
            call()
            counts[index] += 1

    together([partial(work, index) for index in range(threads)])
    return sum(counts) / (time.monotonic() - begun)


def together(works: Sequence[Call]) -> None:
    """Do all at once, on a thread each."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# Processors and memory.


def clock_of(pid: int) -> float:
    """Seconds that the threads of a process have computed, those that have ended too."""
    return time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid(3) returns on Linux


def least_costs(
    turns: Mapping[Key, Callable[[int], object]],
    clocks: Mapping[Key, Call],
    rounds: int,
    count: int,
    warm: int,
) -> dict[Key, float]:
    """The least microseconds of a server for one of ``count`` requests of a turn; what disturbs only adds to them.

    Before each turn come ``warm`` requests, so that its code is in the processor's caches again.
    """

    def cost(turn: Callable[[int], object], clock: Any) -> float:
        turn(warm)
        before = clock()
        turn(count)
        return float(clock() - before) / count * 1e6

    for turn in turns.values():
        turn(64)
    takes = {name: partial(cost, turn, clocks[name]) for name, turn in turns.items()}
    return {name: min(costs) for name, costs in in_turns(takes, rounds).items()}


def busy_seconds() -> float:
    """CPU seconds that all processes of the machine have used."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields[:8]) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def own_seconds(servers: Sequence[Server] = ()) -> float:
    """Those of this program, of its processes that have ended, and of the servers with their processes."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + sum(map(session_seconds, servers))


def session_seconds(server: Server) -> float:
    """Those of a server and its processes, also of those in a session of their own."""
    ticks: dict[int, int] = {}
    parents: dict[int, set[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:  # It has just ended.
            continue
        process = int(entry.parent.name)
        ticks[process] = int(fields[11]) + int(fields[12])
        parents[process] = {int(fields[1]), int(fields[3])}
    family = {server.session}
    while found := {process for process, above in parents.items() if above & family} - family:
        family |= found
    return sum(ticks.get(process, 0) for process in family) / os.sysconf("SC_CLK_TCK")


def status_bytes(field: str, pid: int | str = "self") -> int:
    """A size of ``/proc/PID/status``: VmRSS, VmHWM, RssAnon, RssShmem."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


# Files, and the programs that read them.


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run of a program: seconds on the clock and of all CPUs, and what it printed."""

    seconds: float
    cpu: float
    stdout: str
    stderr: str

    @classmethod
    def median(cls, costs: Sequence["Cost"]) -> "Cost":
        """The medians of the figures, and the last texts."""
        wall, cpu = columns([(cost.seconds, cost.cpu) for cost in costs])
        return cls(wall, cpu, costs[-1].stdout, costs[-1].stderr)


def run(command: Sequence[object]) -> Cost:
    """Run a program to its end; one that fails ends this one."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "NO_PROXY": "127.0.0.1"}
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed with status {done.returncode}: {done.stderr[-4000:]}")
    return Cost(wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, done.stdout, done.stderr)


def fill(directory: Path, size: int, files: int) -> Path:
    """Write ``size`` random bytes in ``files`` equal files, and return their directory."""
    directory.mkdir(parents=True)
    block = os.urandom(1 << 20)
    for index in range(files):
        left = size // files
        with (directory / f"part{index:04}").open("wb") as file:
            while left:
                left -= file.write(block[:left])
    return directory


# Quiet moments.


@dataclass(frozen=True, slots=True)
class Sample:
    """What was done per second, and how many cores other processes took meanwhile."""

    rate: float
    others: float


class Others:
    """The cores that processes other than this one and the servers used inside the ``with`` block."""

    cores = 0.0

    def __init__(self, servers: Sequence[Server] = ()) -> None:
        self._servers = servers

    def __enter__(self) -> "Others":
        self._start = time.perf_counter(), busy_seconds() - own_seconds(self._servers)
        return self

    def __exit__(self, *error: object) -> None:
        began, used = self._start
        self.cores = (busy_seconds() - own_seconds(self._servers) - used) / (time.perf_counter() - began)
        self.cores = max(0.0, self.cores)

    @property
    def share(self) -> float:
        return self.cores / (os.cpu_count() or 1)


Sampled = TypeVar("Sampled", bound=Sample)


def rounds(
    cells: Sequence[Key], take: Callable[[Key], Sampled], wanted: int, deadline: float, *, once: bool = False
) -> dict[Key, list[Sampled]]:
    """Measure every cell in turn until each has ``wanted`` quiet samples, or ``deadline`` (monotonic) is over.

    The first round is always whole; with ``once`` it is the only one.
    """
    samples: dict[Key, list[Sampled]] = defaultdict(list)
    while unfinished := [cell for cell in cells if len(quiet(samples[cell], only=True)) < wanted]:
        for cell in unfinished:
            if samples[cell] and time.monotonic() > deadline:
                return samples
            samples[cell].append(take(cell))
        if once:
            break
    return samples


def quiet(samples: Sequence[Sampled], *, only: bool = False) -> list[Sampled]:
    """Those that others did not disturb; if there are none, all, unless ``only`` they are wanted."""
    found = [sample for sample in samples if sample.others <= QUIET_CORES]
    return found if found or only else list(samples)


def wait_for_quiet(patience: float) -> None:
    """Return when others use little for half a second, or when ``patience`` seconds are over."""
    deadline = time.perf_counter() + patience
    while time.perf_counter() < deadline:
        with Others() as others:
            time.sleep(0.5)
        if others.share < QUIET_SHARE:
            return


def quiet_samples(measure: Callable[[], Taken], count: int, patience: float) -> tuple[list[Taken], float]:
    """``count`` samples, and the largest share that others had in one of them.

    Samples are taken until ``count`` of them saw little of others, or for ``patience`` seconds; the quietest count.
    """
    deadline = time.perf_counter() + patience
    found: list[tuple[float, Taken]] = []
    while len(found) < count or (
        sum(share < QUIET_SHARE for share, _ in found) < count and time.perf_counter() < deadline
    ):
        wait_for_quiet(deadline - time.perf_counter())
        with Others() as others:
            sample = measure()
        found.append((others.share, sample))
    found.sort(key=lambda item: item[0])
    return [sample for _, sample in found[:count]], found[count - 1][0]
