"""How long it takes to index a repository of 10,000 models in EXPLICIT mode on a local disk.

    python benchmarks/index.py [--models 10000]        # exit status 1 if it takes two seconds or more

Measured is a server's start over that repository and its first index. No configuration is read: each holds a line that
would be refused, so that a start that read one would not get through.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from repoagent.serving.core import ControlMode, CoreOptions, ServingCore

LIMIT_SECONDS = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=10_000)
    count = parser.parse_args().models
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(count):
            directory = Path(scratch, f"model{number:05}", "1")
            directory.mkdir(parents=True)
            (directory / "model.onnx").touch()
            (directory.parent / "config.pbtxt").write_text("nobody reads this")
        seconds = measure(scratch, count)
    print(f"{count} models indexed in {seconds:.3f} s (limit: under {LIMIT_SECONDS:g} s)")
    return 0 if seconds < LIMIT_SECONDS else 1


def measure(repository: str, count: int) -> float:
    """Seconds from making the core to having its index."""
    start = time.perf_counter()
    options = CoreOptions(repositories=(repository,), control_mode=ControlMode.EXPLICIT, repoagent_directory=None)
    with ServingCore(options) as core:
        entries = core.index()
        seconds = time.perf_counter() - start
    assert len(entries) == count
    return seconds


if __name__ == "__main__":
    sys.exit(main())
