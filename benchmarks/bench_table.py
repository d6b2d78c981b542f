"""The table beside the peers: this project, a stock Triton and MLServer under the same load, in one run.

    make bench-table                                        # installs the peers, measures, writes docs/measurements
    make bench-table BENCH_TABLE="--quick --write build"    # one short round, written elsewhere
    python benchmarks/bench_table.py --rounds 5 --minutes 12

Every server runs the same Python identity model (FP32, 16 values); MLServer a runtime that does the same. They are
asked in turns, round after round: HTTP by wrk, gRPC by perf_analyzer, on the same cores. A measurement during which
other processes took more than 0.12 core is repeated, as long as there is time left; the medians of the quiet ones
count, and a cell without any says so. A peer that is not installed is left out and named; the exit status is then 1.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

from measures import Sample, machine, options_of, quiet, rounds
from servers import Missing, Server, end_with_servers, mlserver, repoagent, report_missing, triton, write_model
from table_load import Case, perf_analyzer, take
from table_page import Table, show, write

PROCESS = "--backend-config=python,execution=process"
OURS, OURS_APART, OURS_SPINNING = "repoagent", "repoagent, process", "repoagent, process, spinning"
OURS_TWO = "repoagent, 2 processes"
TRITON, MLSERVER = "Triton", "MLServer"
CASES = [
    *(Case(form, connections) for form in ("json", "binary", "grpc") for connections in (1, 8, 32)),
    *(Case("stream", connections) for connections in (1, 8)),
]
ASKED = {
    "json": (OURS, OURS_TWO, OURS_APART, OURS_SPINNING, TRITON, MLSERVER),
    "binary": (OURS, OURS_TWO, OURS_APART, TRITON),
    "grpc": (OURS, OURS_TWO, OURS_APART, TRITON),
    "stream": (OURS, TRITON),
}


def main() -> int:
    options = arguments()
    end_with_servers()
    deadline = time.monotonic() + options.minutes * 60
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        servers, missing = start(Path(scratch), stack, options)
        analyzer = None
        try:
            analyzer = perf_analyzer(options.triton, options.wheels)
        except Missing as error:
            missing["perf_analyzer"] = str(error)
        samples = measure(servers, analyzer, options, deadline)
    table = Table(
        samples={key: quiet(found) for key, found in samples.items()},
        noisy={key for key, found in samples.items() if not quiet(found, only=True)},
        versions={server.name: server.version for server in servers.values()},
        machine=machine(),
        seconds=options.seconds,
    )
    show(table)
    if options.write:
        write(table, options.write)
    return report_missing(missing)


def arguments() -> argparse.Namespace:
    environments = Path(".venvs").absolute()
    options = options_of(
        __doc__,
        rounds=(5, "quiet measurements of each cell"),
        seconds=(2, "length of one measurement"),
        minutes=(12.0, "nothing is repeated after that"),
        quick=(False, "one round of one second, whatever others do"),
        forms=(list(ASKED), "only these"),
        write=(Path, "write serving.md, its data and its plot below this directory"),
        triton=(environments / "triton", "where nvidia-pytriton is installed"),
        mlserver=(environments / "mlserver", "where MLServer is installed"),
        wheels=(environments / "perf_analyzer", "where tritonclient's wheel is"),
    )
    if options.quick:
        options.rounds, options.seconds, options.minutes = 1, 1, 0
    options.triton, options.mlserver = options.triton.absolute(), options.mlserver.absolute()
    options.wheels = options.wheels.absolute()
    return options


def start(scratch: Path, stack: ExitStack, options: argparse.Namespace) -> tuple[dict[str, Server], dict[str, str]]:
    """The servers that there are, and how to get the others."""
    spinning = [PROCESS, "--backend-config=python,spin-microseconds=400"]
    contexts: dict[str, Callable[[Path], AbstractContextManager[Server]]] = {
        OURS: partial(repoagent, OURS),
        OURS_TWO: partial(repoagent, OURS_TWO, flags=["--processes=2"]),
        OURS_APART: partial(repoagent, OURS_APART, flags=[PROCESS]),
        OURS_SPINNING: partial(repoagent, OURS_SPINNING, flags=spinning),
        TRITON: partial(triton, TRITON, environment=options.triton),
        MLSERVER: partial(mlserver, MLSERVER, environment=options.mlserver),
    }
    servers, missing = {}, {}
    for number, (name, context) in enumerate(contexts.items()):
        folder = scratch / str(number)
        write_model(folder / "models")
        try:
            servers[name] = stack.enter_context(context(folder))
        except Missing as error:
            missing[name] = str(error)
    return servers, missing


def measure(
    servers: dict[str, Server], analyzer: Path | None, options: argparse.Namespace, deadline: float
) -> dict[tuple[Case, str], list[Sample]]:
    """Rounds over every server that can be asked in each way."""
    everything = list(servers.values())
    cells = [
        (case, name)
        for case in CASES
        for name in ASKED[case.form]
        if name in servers and case.form in options.forms and (analyzer or case.form in ("json", "binary"))
    ]

    def once(cell: tuple[Case, str]) -> Sample:
        case, name = cell
        sample = take(case, servers[name], everything, options.seconds, analyzer)
        print(f"{case.form} {case.connections} {name}: {sample.rate:,.0f}/s, others {sample.others:.2f}", flush=True)
        return sample

    for case, name in cells:
        take(case, servers[name], everything, 1, analyzer)  # What is warmed up by the first requests is no figure.
    return rounds(cells, once, options.rounds, deadline, once=options.quick)


if __name__ == "__main__":
    sys.exit(main())
