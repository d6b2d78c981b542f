"""What llm_peers.py found, as a table on the terminal, and as a page with its data and plot."""

import csv
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from executor_runs import NEW_TOKENS, PROMPT
from llm_engines import OURS, OURS_PAGED
from measures import Sample, markdown

KINDS = {"fp32": "float32", "short": "8 or 16 bits", "int4": "4 bits"}
PAGE = """# Tokens per second beside other engines

![Tokens per second beside other engines' servers](../img/llm_peers.svg)

All engines serve the same random Llama of {parameters} parameters over OpenAI's `/v1/completions`.
They are asked in turns, in one run, on the same cores as the client. `make bench-table-llm`, a part
of `make bench-table`, makes this page with `benchmarks/llm_peers.py`.

"repoagent" runs on ONNX Runtime, "pages" is ours with
[paged attention](../reference/executor.md#paged-attention) on OpenVINO. Tokens per second, by
requests at once. The bold number is ours over the fastest of the others:

{rates}

Milliseconds until the first token:

{firsts}

Each cell has the median, and the least and the most of its measurements.

- **Machine**: {machine},
  {date}.
- **Requests**: a prompt of {prompt} tokens and {tokens} greedy tokens, all at once; no cache of
  prompts.
- **Measurements**: {count} for each cell. One during which other processes took more than 0.12
  core is repeated.{noisy}
- **Engines**:
  {versions}.
- **float32**: weights and products. openvino-genai reads float16 weights and multiplies in float32;
  llama.cpp keeps keys and values in float16, its default.
- **8 or 16 bits**: int8 weights here, Q8_0 in llama.cpp and openvino-genai. vLLM takes 8 bits from
  calibrated checkpoints only, so it serves bfloat16.
- **4 bits**: blocks of 32, Q4_0 in llama.cpp and openvino-genai.
- **Pages** round activations in 8 and 4 bits (`exact` = `false`), as openvino-genai does, and
  nothing in float32.
- **openvino-genai** has no server in its wheels: `benchmarks/llm_openvino.py` puts its pipeline
  behind the same route.
- **Same text** as ours, of four prompts, before the measurement. The weights are random, so texts
  part at the smallest rounding.
{same}
"""


_OURS = (OURS, OURS_PAGED)


class Cell(NamedTuple):
    """What is measured: an engine at a precision, with so many requests at once."""

    precision: str
    streams: int
    engine: str


@dataclass(frozen=True, slots=True)
class Streamed(Sample):
    """Tokens per second, and milliseconds until the first one."""

    first: float


@dataclass(frozen=True, slots=True)
class Table:
    """The samples that count; ``noisy`` are the cells that have no quiet one, ``same`` counts texts that are ours."""

    samples: dict[Cell, list[Streamed]]
    noisy: set[Cell]
    same: dict[tuple[str, str], int]
    versions: dict[str, str]
    machine: str
    size: str

    @property
    def cases(self) -> list[tuple[str, int]]:
        return list(dict.fromkeys((cell.precision, cell.streams) for cell in self.samples))

    def rate(self, cell: Cell) -> float | None:
        found = self.samples.get(cell)
        return statistics.median(sample.rate for sample in found) if found else None

    def rate_text(self, cell: Cell) -> str:
        """The median and the spread; for ours, the ratio to the fastest of the others as well."""
        median = self.rate(cell)
        if median is None:
            return "-"
        others = [self.rate(cell._replace(engine=name)) for name in self.versions if name not in _OURS]
        fastest = max((rate for rate in others if rate is not None), default=None)
        ratio = f", **{median / fastest:.2f}**" if cell.engine in _OURS and fastest else ""
        return f"{median:,.0f}{ratio} {self._spread([sample.rate for sample in self.samples[cell]], cell)}"

    def first_text(self, cell: Cell) -> str:
        if not (found := self.samples.get(cell)):
            return "-"
        firsts = [sample.first for sample in found]
        return f"{statistics.median(firsts):,.0f} {self._spread(firsts, cell)}"

    def _spread(self, values: list[float], cell: Cell) -> str:
        return f"({min(values):,.0f} to {max(values):,.0f})" + (" (noisy)" if cell in self.noisy else "")


def show(table: Table) -> None:
    for precision, streams in table.cases:
        print(f"{KINDS[precision]}, {streams} at once: tokens per second; ms until the first; same of 4")
        for name in table.versions:
            cell = Cell(precision, streams, name)
            if cell in table.samples:
                rate = table.rate_text(cell).replace("**", "")
                same = table.same.get((name, precision), "-")
                print(f"    {name:<18}{rate:<40}{table.first_text(cell):<36}{same}")


def write(table: Table, directory: Path) -> None:
    """The page, its data, and the plot of both."""
    (directory / "data").mkdir(parents=True, exist_ok=True)
    (directory.parent / "img").mkdir(exist_ok=True)
    (directory / "llm-peers.md").write_text(page(table))
    data = directory / "data" / "llm_peers.csv"
    with data.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["weights", "requests at once", *table.versions])
        for precision, streams in table.cases:
            rates = [table.rate(Cell(precision, streams, name)) or 0 for name in table.versions]
            writer.writerow([KINDS[precision], streams, *(round(rate) for rate in rates)])
    drawer = Path(__file__).parents[1] / "docs" / "measurements" / "plot.py"
    subprocess.run([sys.executable, str(drawer), str(data)], check=True)


def page(table: Table) -> str:
    counts = [len(samples) for samples in table.samples.values()]
    return PAGE.format(
        parameters=table.size.upper().replace("M", " M"),
        rates=_rows(table, firsts=False),
        firsts=_rows(table, firsts=True),
        machine=table.machine,
        date=datetime.now(UTC).strftime("%B %Y"),
        prompt=PROMPT,
        tokens=NEW_TOKENS,
        count=f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}",
        noisy="\n  Cells marked as noisy had no quiet one: the machine was busy." if table.noisy else "",
        versions=", ".join(dict.fromkeys(table.versions.values())),
        same="\n".join(_same(table)),
    )


def _rows(table: Table, *, firsts: bool) -> str:
    head = ["weights", "at once", *table.versions]
    rows = []
    for precision, streams in table.cases:
        cells = [Cell(precision, streams, name) for name in table.versions]
        texts = [table.first_text(cell) if firsts else table.rate_text(cell) for cell in cells]
        rows.append([KINDS[precision], streams, *texts])
    return markdown(head, rows)


def _same(table: Table) -> Iterator[str]:
    for precision in dict.fromkeys(precision for precision, _ in table.cases):
        names = [name for name in table.versions if name != OURS and (name, precision) in table.same]
        counts = ", ".join(f"{name} {table.same[name, precision]}" for name in names)
        yield f"  - {KINDS[precision]}: {counts or 'not compared'}."
