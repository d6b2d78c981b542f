"""What starting costs: the import, ``--help``, and the memory of an idle server with the example loaded.

    python benchmarks/footprint.py

Prints each figure beside its limit and exits 1 if one is over. Imports are medians of seven runs, in turn with a bare
interpreter; the server's memory is its resident set once it is ready.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "digits"
RUNS = 7
LIMITS = {"import repoagent": 150.0, "repoagent --help": 300.0, "idle server": 120.0}


def main() -> int:
    bare, imported, helped = [], [], []
    for _ in range(RUNS):
        bare.append(milliseconds([sys.executable, "-c", "pass"]))
        imported.append(milliseconds([sys.executable, "-c", "import repoagent"]))
        helped.append(milliseconds([sys.executable, "-m", "repoagent", "--help"]))
    over_bare = statistics.median(imported) - statistics.median(bare)
    print(f"bare interpreter    {statistics.median(bare):7.1f} ms")
    good = [
        show("import repoagent", over_bare, "ms over a bare interpreter"),
        show("repoagent --help", statistics.median(helped), "ms"),
        show("idle server", idle_megabytes(), "MB resident"),
    ]
    return 0 if all(good) else 1


def milliseconds(command: Sequence[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - started) * 1000


def show(name: str, value: float, unit: str) -> bool:
    limit = LIMITS[name]
    print(f"{name:19} {value:7.1f} {unit} (limit {limit:.0f})")
    return value <= limit


def idle_megabytes() -> float:
    """Resident memory of ``repoagent serve`` over the example, once it says that it is ready."""
    with tempfile.TemporaryDirectory() as scratch:
        ready = Path(scratch, "ready.json")
        command = [sys.executable, "-m", "repoagent", "serve", f"--model-repository={EXAMPLE / 'repository'}"]
        command += ["--http-port=0", "--metrics-port=0", f"--ready-file={ready}"]
        key = (EXAMPLE / "identity.txt").read_text().split()[-1]
        environment = os.environ | {"DIGITS_IDENTITY": key}
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            while not ready.exists():
                if server.poll() is not None:
                    raise SystemExit("the server did not start")
                time.sleep(0.05)
            status = Path(f"/proc/{server.pid}/status").read_text()
            server.terminate()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1000


if __name__ == "__main__":
    sys.exit(main())
