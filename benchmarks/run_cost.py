"""What ``repoagent run`` costs: the start of a command behind it, and the memory that stays beside the command.

    python benchmarks/run_cost.py

Starts ``true`` alone, behind ``repoagent run`` over a plain model, and behind ``sops exec-file`` where sops and the
variable ``SOPS_FILE``, a file that it can decrypt, are there. Medians of seven runs, in turn; memory is the resident
set of all processes of ``run`` while its command sleeps.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from measures import in_turns, machine, medians, run, status_bytes, table

RUNS = 7


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch, "models", "plain")
        (model / "1").mkdir(parents=True)
        (model / "1" / "model.bin").write_bytes(bytes(1 << 20))
        flags = [f"--workspace-directory={scratch}/work", f"--cache-directory={scratch}/cache", "--allow-unchecked"]
        front = [sys.executable, "-m", "repoagent", "run", str(model), *flags, "--"]
        commands = {"true": ["true"], "repoagent run -- true": [*front, "true"]}
        secret = os.environ.get("SOPS_FILE")
        if shutil.which("sops") and secret:
            commands["sops exec-file"] = ["sops", "exec-file", secret, "true"]
        taken = medians(in_turns({name: partial(_seconds, command) for name, command in commands.items()}, RUNS))
        print(machine())
        print(table(["command", "ms"], [(name, f"{seconds * 1000:.1f}") for name, seconds in taken.items()]))
        print(f"resident beside the command: {_resident(front) / 1e6:.1f} MB")
        if len(commands) == 2:
            print("sops exec-file was not measured: sops is not installed, or SOPS_FILE is not set")


def _seconds(command: list[str]) -> float:
    return run(command).seconds


def _resident(front: list[str]) -> int:
    """The memory of ``run``, its supervisor and its sentinel, while the command waits for its input."""
    with subprocess.Popen([*front, "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"x\n")
        child.stdin.flush()
        child.stdout.readline()
        started = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
        processes = [str(child.pid), *started]
        total = sum(status_bytes("VmRSS", process) for process in processes)
        child.stdin.close()
    return total


if __name__ == "__main__":
    main()
