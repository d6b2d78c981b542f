"""What bench_table.py found, as a table on the terminal, and as a page with its data and plot."""

import csv
import statistics
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from measures import Sample, markdown
from table_load import Case

__all__ = ["Table", "show", "write"]

PEER, PLOTTED = "Triton", "repoagent"
FORMS = {"json": "HTTP, JSON", "binary": "HTTP, binary", "grpc": "gRPC", "stream": "gRPC, stream"}
APART = "repoagent, process"
PLOTS = {"HTTP, JSON": ("json", "repoagent"), "gRPC": ("grpc", "repoagent"), "HTTP, own process": ("json", APART)}
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
        median, peer = self.median(case, name), self.median(case, PEER)
        if median is None:
            return "-"
        rates = [sample.rate for sample in self.samples[case, name]]
        ratio = f", **{median / peer:.2f}**" if peer and name != PEER else ""
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
        writer.writerow(["protocol", "connections", PEER, PLOTTED])
        for label, (form, name) in PLOTS.items():
            for case in table.cases:
                ours, peer = table.median(case, name), table.median(case, PEER)
                if case.form == form and ours and peer:
                    writer.writerow([label, case.connections, round(peer), round(ours)])
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
