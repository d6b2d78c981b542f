"""Draw the plots of docs/measurements from the data beside them: ``python docs/measurements/plot.py``.

Each ``data/NAME.csv``, or each that is named, becomes ``img/NAME.svg`` beside the directory of its page: a bar for each
column of numbers in every row, grouped by the first column. Standard library only, so that anyone can draw them again.
"""

import csv
import sys
from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
COLOURS: Final = ("#9aa5b1", "#2f7ed8", "#2a9d63", "#d98324", "#8a5fc4", "#c0504d")
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 740, 336, 64, 62, 62
BAR, GAP, SPACE = 24, 10, 44
UNITS: Final = {
    "batching": "% of a bare loop's rate",
    "beside_triton": "requests per second, by connections",
    "capi": "µs per request",
    "core": "ms",
    "drafts": "tokens per second, by right guesses",
    "executor_beside": "tokens per second, by requests at once",
    "executor_share": "% of an iteration, by requests at once",
    "fetch": "MB/s, by size",
    "http": "% of the echo's requests per second",
    "inprocess": "µs added to a call, p50",
    "language_models": "tokens per second, by requests at once",
    "llm_peers": "tokens per second, by requests at once",
    "many_models": "milliseconds per model, by the number of models",
    "python_models": "requests per second, by size",
    "rolling_restart": "lost requests, by requests sent",
    "tink": "MB/s of plaintext",
    "verify": "MB/s, the start of the program included",
}


def draw(rows: list[dict[str, str]], unit: str) -> str:
    """The plot of ``rows`` as SVG text."""
    label, detail, *series = rows[0]
    top = max(float(row[name]) for row in rows for name in series)
    scale = (HEIGHT - TOP - BOTTOM) / (top * 1.08)
    parts = list[str]()
    x = LEFT + SPACE / 2
    for group, members in groupby(rows, key=lambda row: row[label]):
        start = x
        for row in members:
            parts += _bars(row, series, x, scale, row[detail])
            x += BAR * len(series) + GAP
        middle = (start + x - GAP) / 2
        parts.append(
            f'<text x="{middle:.0f}" y="{HEIGHT - 14}" text-anchor="middle" font-weight="bold">{escape(group)}</text>'
        )
        x = max(x, middle + 4 * len(group)) + SPACE
    width = max(WIDTH, x)
    parts = [*_legend(series), *_axis(top, scale, unit, width), *parts]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {HEIGHT}" '
    style = 'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#1c2733">'
    background = f'<rect width="{width:.0f}" height="{HEIGHT}" fill="#ffffff"/>'
    return "\n".join([head + style, background, *parts, "</svg>", ""])


def _legend(series: list[str]) -> Iterator[str]:
    for number, name in enumerate(series):
        x = LEFT + 170 * number
        yield f'<rect x="{x}" y="14" width="12" height="12" fill="{COLOURS[number]}"/>'
        yield f'<text x="{x + 18}" y="25">{escape(name)}</text>'


def _axis(top: float, scale: float, unit: str, width: float) -> Iterator[str]:
    base = HEIGHT - BOTTOM
    yield f'<text x="{LEFT}" y="46" fill="#52606d">{escape(unit)}</text>'
    step = max(1, 10 ** (len(str(int(top))) - 1) // 2)
    for value in range(0, int(top * 1.05) + 1, step):
        y = base - value * scale
        yield f'<line x1="{LEFT}" x2="{width:.0f}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e7eb"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#52606d">{value:,}</text>'


def _bars(row: dict[str, str], series: list[str], x: float, scale: float, detail: str) -> Iterator[str]:
    base = HEIGHT - BOTTOM
    for number, name in enumerate(series):
        height = float(row[name]) * scale
        left = x + BAR * number
        shape = f'x="{left:.0f}" y="{base - height:.1f}" width="{BAR - 2}" height="{height:.1f}"'
        yield f'<rect {shape} fill="{COLOURS[number]}"><title>{escape(name)}: {row[name]}</title></rect>'
    middle = x + BAR * len(series) / 2
    yield f'<text x="{middle:.0f}" y="{base + 18}" text-anchor="middle" fill="#52606d">{escape(detail)}</text>'


def unit_of(source: Path) -> str:
    """What the numbers of a file are."""
    return UNITS[source.stem]


def main() -> None:
    """Draw every plot, or those of the files that are named."""
    named = [Path(name) for name in sys.argv[1:]]
    for source in named or sorted((HERE / "data").glob("*.csv")):
        with source.open(newline="") as lines:
            rows = list(csv.DictReader(lines))
        target = source.absolute().parents[2] / "img" / f"{source.stem}.svg"
        target.write_text(draw(rows, unit_of(source)))
        print(f"{source.name} -> {target.name}")


if __name__ == "__main__":
    main()
