"""Tests in random order, on one core, whose processes are stopped again and again: ``make test-starved``.

    python tests/starved.py [--seed N] tests/loader ...

A test that depends on speed, on the order of threads or on another test fails here sooner than on a busy machine. The
seed repeats the order of the tests; which process stops when is never the same. A test that stops a process itself can
find it going again too early: rerun what fails alone before you believe it.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from itertools import groupby
from pathlib import Path
from typing import Final

import pytest

SEED: Final = "REPOAGENT_TESTS_SEED"
ROOT: Final = Path(__file__).parent.parent
BETWEEN, STOPPED, LONG = (0.02, 0.3), (0.05, 0.3), (0.3, 0.8)
"""Seconds between two stops, and how long one is: every fifth is long."""
_RUNS: Final = frozenset("SRD")
"""The states of a process that nobody has stopped, and that has not ended."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files in random order, and the tests within each: fixtures of a file are still made once."""
    if SEED not in os.environ:
        return
    draw = random.Random(os.environ[SEED])
    files = [list(group) for _, group in groupby(items, key=lambda item: item.path)]
    draw.shuffle(files)
    for file in files:
        draw.shuffle(file)
    items[:] = [item for file in files for item in file]


def descendants(pid: int) -> list[int]:
    """The processes that ``pid`` started, theirs too, as far as they are there."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def stop_one(pids: list[int], draw: random.Random) -> None:
    """Stop one of them for a moment, unless it has ended or somebody else has stopped it."""
    pid = draw.choice(pids)
    with contextlib.suppress(OSError):
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in _RUNS:
            return
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(draw.uniform(*(LONG if draw.random() < 0.2 else STOPPED)))
        finally:
            os.kill(pid, signal.SIGCONT)


def main() -> int:
    """Run pytest with the arguments that are left; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(1 << 32)), help="the order of the tests")
    options, arguments = parser.parse_known_args()
    print(f"python tests/starved.py --seed {options.seed} {' '.join(arguments)}", flush=True)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.starved", "-p", "no:cacheprovider", *arguments]
    draw = random.Random()
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | {SEED: options.seed}) as tests:
        while tests.poll() is None:
            stop_one([tests.pid, *descendants(tests.pid)], draw)
            time.sleep(draw.uniform(*BETWEEN))
    return tests.returncode


if __name__ == "__main__":
    sys.exit(main())
