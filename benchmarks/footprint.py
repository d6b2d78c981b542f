"""What starting costs: the import, ``--help``, and the memory of an idle server with the example loaded.

    python benchmarks/footprint.py

Prints each figure beside its limit and exits 1 if one is over. Imports are medians of seven runs, in turn with a bare
interpreter; the server's memory is its resident set once it is ready.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from measures import in_turns, medians, run, status_bytes
from servers import repoagent

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "digits"
RUNS = 7
LIMITS = {"import repoagent": 150.0, "repoagent --help": 300.0, "idle server": 120.0}


def main() -> int:
    programs = {"bare": ("-c", "pass"), "import": ("-c", "import repoagent"), "help": ("-m", "repoagent", "--help")}
    takes = {name: partial(milliseconds, [sys.executable, *program]) for name, program in programs.items()}
    found = medians(in_turns(takes, RUNS))
    over_bare = found["import"] - found["bare"]
    print(f"bare interpreter    {found['bare']:7.1f} ms")
    good = [
        show("import repoagent", over_bare, "ms over a bare interpreter"),
        show("repoagent --help", found["help"], "ms"),
        show("idle server", idle_megabytes(), "MB resident"),
    ]
    return 0 if all(good) else 1


def milliseconds(command: Sequence[str]) -> float:
    return run(command).seconds * 1000


def show(name: str, value: float, unit: str) -> bool:
    limit = LIMITS[name]
    print(f"{name:19} {value:7.1f} {unit} (limit {limit:.0f})")
    return value <= limit


def idle_megabytes() -> float:
    """Resident memory of ``repoagent serve`` over the example, once it is ready."""
    os.environ["DIGITS_IDENTITY"] = (EXAMPLE / "identity.txt").read_text().split()[-1]
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "models").symlink_to(EXAMPLE / "repository")
        with repoagent("idle", Path(scratch), (), ("-m", "repoagent")) as server:
            return status_bytes("VmRSS", server.session) / 1024e3


if __name__ == "__main__":
    sys.exit(main())
