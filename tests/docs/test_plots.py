"""The plots are those of the data beside them."""

import csv
import runpy
from pathlib import Path

import pytest

MEASUREMENTS = Path(__file__).resolve().parents[2] / "docs" / "measurements"


@pytest.mark.parametrize("source", sorted((MEASUREMENTS / "data").glob("*.csv")), ids=lambda path: path.stem)
def test_a_plot_shows_its_data(source: Path) -> None:
    plot = runpy.run_path(str(MEASUREMENTS / "plot.py"))
    with source.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    image = (MEASUREMENTS.parent / "img" / f"{source.stem}.svg").read_text()
    assert image == plot["draw"](rows, plot["unit_of"](source))
    assert image.count("<title>") == len(rows) * (len(rows[0]) - 2)
