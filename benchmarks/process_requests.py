"""Requests to a Python model in a process of its own, with each of the fast paths to it switched off.

    python benchmarks/process_requests.py [--seconds 2] [--rounds 5]    # exit status 1 if one does not pay

Servers of their own run the same identity model (FP32, 16 values): in process; in a process; in one that gets each
request by itself (``--backend-config=python,requests-ahead=1``); in one whose answers a thread takes, not the front
end's event loop; and in one that spins before it sleeps. They are loaded in turns over HTTP (JSON), by wrk where that
is installed; medians count. All share the machine's cores.
"""

import argparse
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import http_infer
import numpy as np
from python_backend import IDENTITY, write_model

THREADS = """
from repoagent.serving.instances.loop_reader import LoopReader
LoopReader.here = staticmethod(lambda: None)
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
    options = arguments()
    arrays = {"x": (np.arange(16) / 8).astype(np.float32)}
    payload = http_infer.payload("identity", "json", arrays)
    rates: dict[int, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        ports = {}
        for number, (name, settings) in enumerate(VARIANTS.items()):
            folder = Path(scratch, str(number))
            write_model(folder / "models" / "identity", IDENTITY, None, 1)
            flags = [f"--backend-config=python,{setting}" for setting in settings]
            before = THREADS if name == "by threads" else ""
            ports[name] = stack.enter_context(http_infer.serve_ports(folder, flags, before=before))["http"]
        for connections in options.connections:
            found: dict[str, list[float]] = {name: [] for name in ports}
            for _ in range(options.rounds):
                for name, port in ports.items():
                    found[name].append(http_infer.load(payload, port, connections, options.seconds))
            rates[connections] = {name: statistics.median(values) for name, values in found.items()}
    return show(rates)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=2, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each case; the median counts")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8, 32])
    return parser.parse_args()


def show(rates: dict[int, dict[str, float]]) -> int:
    print(f"requests per second, {os.cpu_count()} cores shared with the generator, load {os.getloadavg()[0]:.1f}")
    print(f"{'connections':<12}" + "".join(f"{name:>14}" for name in (*VARIANTS, "/ one by one", "/ by threads")))
    for connections, row in rates.items():
        cells = [f"{row[name]:,.0f}" for name in VARIANTS]
        cells += [f"{row['process'] / row[name]:.2f}" for name in ("one by one", "by threads")]
        print(f"{connections:<12}" + "".join(f"{cell:>14}" for cell in cells))
    threads = all(row["process"] > row["by threads"] for row in rates.values())
    alone = all(row["process"] > row["one by one"] for connections, row in rates.items() if connections > 1)
    return 0 if threads and alone else 1


if __name__ == "__main__":
    sys.exit(main())
