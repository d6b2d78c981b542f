"""The table beside the peers: this project, a stock Triton and MLServer under the same load, in one run.

    make bench-table                                        # installs the peers, measures, writes docs/measurements
    make bench-table BENCH_TABLE="--quick --write build"    # one short round, written elsewhere
    python benchmarks/bench_table.py --rounds 5 --minutes 12
    python benchmarks/bench_table.py --servers repoagent "repoagent, 2 processes" Triton --forms json grpc

Every server runs the same Python identity model (FP32, 16 values); MLServer a runtime that does the same. They are
asked in turns, round after round: HTTP by wrk, gRPC by perf_analyzer, on the same cores. A measurement during which
other processes took more than 0.12 core is repeated, as long as there is time left; the medians of the quiet ones
count, and a cell without any says so. A peer that is not installed is left out and named; the exit status is then 1.
"""

import argparse
import csv
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from loads import SIXTEEN, http_rate, payload
from measures import Others, Sample, machine, markdown, options_of, quiet, rounds
from servers import Missing, Server, end_with_servers, mlserver, repoagent, report_missing, triton, write_model

PROCESS = "--backend-config=python,execution=process"
OURS, OURS_APART, OURS_SPINNING = "repoagent", "repoagent, process", "repoagent, process, spinning"
OURS_TWO = "repoagent, 2 processes"
TRITON, MLSERVER = "Triton", "MLServer"
WINDOWS = 3
"""perf_analyzer takes the mean of so many."""
FORMS = {"json": "HTTP, JSON", "binary": "HTTP, binary", "grpc": "gRPC", "stream": "gRPC, stream"}
PLOTS = {"HTTP, JSON": ("json", OURS), "gRPC": ("grpc", OURS), "HTTP, own process": ("json", OURS_APART)}
PAGE = """# Requests per second beside Triton

![Requests per second beside a stock Triton](../img/beside_triton.svg)

All servers run the same Python identity model (FP32, 16 values). They are asked in turns, in one
run, on the same cores as the clients. `make bench-table` makes this page.

{table}

Each cell has the median, and the least and the most of its measurements.

- **Machine**: {machine}, {date}.
- **Measurements**: {count} of {seconds} s for each cell. One during which other processes took more
  than 0.12 core is repeated.{noisy}
- **Servers**: {versions}.
- **Triton** runs every Python model in a process of its own, so all of its figures compare with
  those of the column for processes as well.
- **2 processes** is `--processes 2`: each has the front ends and the model.
- **Spinning** is `--backend-config=python,spin-microseconds=400`.
- **Processes** wait for each other at 1 connection: waking one up takes longer than the model.
  Spinning saves a part of that, and costs a core.
- **Clients**: wrk for HTTP, perf_analyzer for gRPC.
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One way of asking: "json" or "binary" by wrk, "grpc" or "stream" by perf_analyzer."""

    form: str
    connections: int


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
        servers=([OURS, OURS_TWO, OURS_APART, OURS_SPINNING, TRITON, MLSERVER], "only these"),
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
    for number, name in enumerate(options.servers):
        folder = scratch / str(number)
        write_model(folder / "models")
        try:
            servers[name] = stack.enter_context(contexts[name](folder))
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


# The load generators.


def take(case: Case, server: Server, servers: Sequence[Server], seconds: int, analyzer: Path | None) -> Sample:
    """Measure once."""
    with Others(servers) as others:
        if case.form in ("json", "binary"):
            item = payload("identity", case.form, {"INPUT0": SIXTEEN})
            rate = http_rate(item, server.http, case.connections, seconds)
        else:
            assert analyzer is not None
            rate = analyzed(analyzer, case, server.grpc, seconds)
    return Sample(rate, others.cores)


def analyzed(analyzer: Path, case: Case, port: int, seconds: int) -> float:
    """The rate that perf_analyzer reports."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.csv")
        command = [str(analyzer), "-m", "identity", "-u", f"127.0.0.1:{port}", "-i", "grpc", "-b", "1"]
        command += ["--async", "--streaming"] if case.form == "stream" else ["--sync"]
        command += ["--concurrency-range", str(case.connections), "-p", str(seconds * 1000 // WINDOWS)]
        # It never repeats a window because the last ones differed.
        command += ["-s", "999", "-r", str(WINDOWS), "-f", str(report)]
        libraries = str(analyzer.parent / "libraries")
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LD_LIBRARY_PATH": libraries})
        if done.returncode or not report.exists():
            raise SystemExit(f"perf_analyzer: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        with report.open(newline="") as lines:
            return float(next(csv.DictReader(lines))["Inferences/Second"])


def perf_analyzer(environment: Path, wheels: Path) -> Path:
    """The program in the wheel of tritonclient that lies in ``wheels``, with the libraries that it wants beside it.

    Raises:
        Missing: there is no such wheel, or no Triton that brings the libraries.
    """
    found = sorted(wheels.glob("tritonclient-*manylinux*.whl"))
    bundled = next(iter(environment.glob("lib/python3*/site-packages/nvidia_pytriton.libs")), None)
    if not found or bundled is None:
        raise Missing("tritonclient's wheel with perf_analyzer is not there; `make bench-table` downloads it")
    home = wheels / "unpacked"
    if not home.exists():
        shutil.unpack_archive(found[-1], home, "zip")
    program = next(home.glob("*/data/bin/perf_analyzer"))
    program.chmod(0o755)
    libraries = program.parent / "libraries"
    libraries.mkdir(exist_ok=True)
    for name in ("libb64.so.0d", "libcudart.so.12"):
        (source,) = sorted(bundled.glob(f"{name.split('.')[0]}*"))[:1]
        if not (libraries / name).exists():
            (libraries / name).symlink_to(source.resolve())
    return program


# The table on the terminal, and as a page with its data and plot.


@dataclass(frozen=True, slots=True)
class Table:
    """The samples that count, by case and server; ``noisy`` are the cells that have no quiet one."""

    samples: dict[tuple[Case, str], list[Sample]]
    noisy: set[tuple[Case, str]]
    versions: dict[str, str]
    machine: str
    seconds: int

    @property
    def names(self) -> list[str]:
        return list(self.versions)

    @property
    def cases(self) -> list[Case]:
        return list(dict.fromkeys(case for case, _ in self.samples))

    def median(self, case: Case, name: str) -> float | None:
        found = self.samples.get((case, name))
        return statistics.median(sample.rate for sample in found) if found else None

    def cell(self, case: Case, name: str) -> str:
        """The median, its ratio to the peer, and the spread."""
        median, peer = self.median(case, name), self.median(case, TRITON)
        if median is None:
            return "-"
        rates = [sample.rate for sample in self.samples[case, name]]
        ratio = f", **{median / peer:.2f}**" if peer and name != TRITON else ""
        mark = " (noisy)" if (case, name) in self.noisy else ""
        return f"{median:,.0f}{ratio} ({min(rates):,.0f} to {max(rates):,.0f}){mark}"


def show(table: Table) -> None:
    for case in table.cases:
        print(f"{FORMS[case.form]}, {case.connections}:")
        for name in table.names:
            if (case, name) in table.samples:
                print(f"    {name:<30} {table.cell(case, name).replace('**', '')}")


def write(table: Table, directory: Path) -> None:
    """The page, its data, and the plot of both."""
    (directory / "data").mkdir(parents=True, exist_ok=True)
    (directory.parent / "img").mkdir(exist_ok=True)
    (directory / "serving.md").write_text(page(table))
    with (directory / "data" / "beside_triton.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["protocol", "connections", TRITON, OURS])
        for label, (form, name) in PLOTS.items():
            for case in table.cases:
                ours, peer = table.median(case, name), table.median(case, TRITON)
                if case.form == form and ours and peer:
                    writer.writerow([label, case.connections, round(peer), round(ours)])
    if TRITON not in table.names:  # the plot is of both
        return
    drawer = Path(__file__).parents[1] / "docs" / "measurements" / "plot.py"
    subprocess.run([sys.executable, str(drawer), str(directory / "data" / "beside_triton.csv")], check=True)


def page(table: Table) -> str:
    head = ["", "connections", *table.names]
    rows = [
        [FORMS[case.form], str(case.connections), *(table.cell(case, name) for name in table.names)]
        for case in table.cases
    ]
    counts = [len(samples) for samples in table.samples.values()]
    count = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    return PAGE.format(
        table=markdown(head, rows),
        machine=table.machine,
        date=datetime.now(UTC).strftime("%B %Y"),
        count=count,
        seconds=table.seconds,
        noisy="\n  Cells marked as noisy had no quiet one: the machine was busy." if table.noisy else "",
        versions=", ".join(dict.fromkeys(table.versions.values())),
    )


if __name__ == "__main__":
    sys.exit(main())
