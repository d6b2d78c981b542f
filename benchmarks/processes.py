"""What further processes give: one server with `--processes=1` and one with N, loaded in turns in the same run.

    python benchmarks/processes.py                        # N = the cores of this machine
    python benchmarks/processes.py --processes 4 --connections 1 8 32 --seconds 5

The model is ONNX and small, so that parsing and encoding cost most. With a home it is in one process: the share of
requests that reach another one cross a socket more. The generators run on the same cores as the
servers. Start is from the command to the ready file, with one model; memory is the proportional set size of all
processes of a server after the load.
"""

import os
import sys
import tempfile
import time
from functools import partial
from itertools import product
from pathlib import Path

from loads import rate
from measures import in_turns, medians, options_of, ratio, table
from onnx_models import CONFIG, write_models, write_onnx
from servers import Server, repoagent

_HOME = 'parameters { key: "home" value { string_value: "one" } }'


def main() -> int:
    options = options_of(
        __doc__,
        seconds=(2, "of one measurement"),
        rounds=3,
        processes=(os.cpu_count() or 1, "that are compared with one"),
        connections=[1, 8, 32],
        forms=["json", "grpc"],
    )
    one, many, homed = "1 process", f"{options.processes} processes", "with a home"
    with tempfile.TemporaryDirectory() as scratch:
        folder, rows = Path(scratch), []
        name, arrays = next(iter(write_models(folder / "models").items()))
        content = (folder / "models" / name / "1" / "model.onnx").read_bytes()
        write_onnx(folder / "models", f"{name}_home", content, f"{CONFIG} {_HOME}")
        started = time.monotonic()
        with repoagent(one, folder) as single:
            first = time.monotonic() - started
            started = time.monotonic()
            with repoagent(many, folder, [f"--processes={options.processes}"]) as several:
                second = time.monotonic() - started
                servers = {one: (single, name), many: (several, name), homed: (several, f"{name}_home")}
                for form, count in product(options.forms, options.connections):
                    takes = {
                        key: partial(
                            rate,
                            form,
                            model,
                            arrays,
                            ("127.0.0.1", server.grpc if form == "grpc" else server.http),
                            count,
                            options.seconds,
                        )
                        for key, (server, model) in servers.items()
                    }
                    rates = in_turns(takes, options.rounds)
                    cells = [f"{value:,.0f}" for value in medians(rates).values()]
                    ratios = f"{ratio(rates, many, one):.2f}", f"{ratio(rates, homed, many):.2f}"
                    rows.append([form, count, *cells, *ratios])
                memory = {key: _memory(server) for key, (server, _) in servers.items()}
    print(f"requests per second for the model {name}, {os.cpu_count()} cores shared with the generators")
    print(table(("form", "connections", one, many, homed, "many/one", "home/many"), rows))
    print(f"start: {first:.1f} s and {second:.1f} s; memory: {memory[one]:.0f} MiB and {memory[many]:.0f} MiB")
    return 0


def _memory(server: Server) -> float:
    """Proportional set size of a server and the processes below it, in MiB."""
    total, waiting = 0, [server.session]
    while waiting:
        pid = waiting.pop()
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
        for thread in Path(f"/proc/{pid}/task").iterdir():
            waiting += map(int, (thread / "children").read_text().split())
    return total / 1024


if __name__ == "__main__":
    sys.exit(main())
