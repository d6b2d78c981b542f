"""Requests to a Python model in a process of its own, with each of the fast paths to it switched off.

    python benchmarks/process_requests.py [--seconds 2] [--rounds 5]    # exit status 1 if one does not pay

Servers of their own run the same identity model (FP32, 16 values): in process; in a process; in one that gets each
request by itself (``--backend-config=python,requests-ahead=1``); in one whose answers a thread takes, not the front
end's event loop; and in one that spins before it sleeps. They are loaded in turns over HTTP (JSON), by wrk where that
is installed; medians count. All share the machine's cores.
"""

import os
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from loads import SIXTEEN, http_rate, payload
from measures import in_turns, medians, options_of, table
from servers import MAIN, repoagent, write_model

THREADS = f"""
from repoagent.serving.instances.loop_reader import LoopReader
LoopReader.here = staticmethod(lambda: None)
{MAIN}
"""
"""Has every loop leave the answers of processes to threads."""
VARIANTS: dict[str, tuple[str, ...]] = {
    "in process": (),
    "process": ("execution=process",),
    "one by one": ("execution=process", "requests-ahead=1"),
    "by threads": ("execution=process",),
    "spinning": ("execution=process", "spin-microseconds=400"),
}


def main() -> int:
    options = options_of(__doc__, seconds=(2, "of one measurement"), rounds=5, connections=[1, 8, 32])
    item, rows, good = payload("identity", "json", {"INPUT0": SIXTEEN}), [], True
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        write_model(Path(scratch) / "models")
        ports = {}
        for name, settings in VARIANTS.items():
            flags = [f"--backend-config=python,{setting}" for setting in settings]
            program = ("-c", THREADS if name == "by threads" else MAIN)
            ports[name] = stack.enter_context(repoagent(name, Path(scratch), flags, program)).http
        for count in options.connections:
            takes = {name: partial(http_rate, item, port, count, options.seconds) for name, port in ports.items()}
            rates = medians(in_turns(takes, options.rounds))
            better = [rates["process"] / rates[name] for name in ("one by one", "by threads")]
            good &= better[1] > 1 and (count == 1 or better[0] > 1)
            rows.append([count, *(f"{rate:,.0f}" for rate in rates.values()), *(f"{part:.2f}" for part in better)])
    print(f"requests per second, {os.cpu_count()} cores shared with the generator, load {os.getloadavg()[0]:.1f}")
    print(table(("connections", *VARIANTS, "/ one by one", "/ by threads"), rows))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
