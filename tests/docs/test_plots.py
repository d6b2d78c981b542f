"""The plots are those of the data beside them."""

import csv
import re
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


@pytest.mark.parametrize("page", sorted(MEASUREMENTS.glob("*.md")), ids=lambda path: path.stem)
def test_a_page_has_its_command_its_machine_and_its_date(page: Path) -> None:
    text = page.read_text()
    assert re.search(r"benchmarks/\w+\.py|make bench", text)
    assert re.search(r"\*\*Machine\*\*:|cores", text)
    assert re.search(r"\bNovember 2026|20\d\d-\d\d-\d\d", text)


def test_every_plot_is_on_a_page_and_every_page_of_then_has_one() -> None:
    shown = [name for page in MEASUREMENTS.glob("*.md") for name in re.findall(r"img/(\w+)\.svg", page.read_text())]
    assert {path.stem for path in (MEASUREMENTS / "data").glob("*.csv")} <= set(shown)
    assert len(shown) >= 12


def test_every_benchmark_is_in_the_list_with_its_purpose() -> None:
    folder = MEASUREMENTS.parents[1] / "benchmarks"
    rows = re.findall(r"^\| (`.*`) \| (.+) \|$", (folder / "README.md").read_text(), re.MULTILINE)
    listed = [name for names, _ in rows for name in re.findall(r"`(\w+\.py)`", names)]
    assert sorted(listed) == sorted(path.name for path in folder.glob("*.py"))
