"""The page that `make bench-table` writes, from samples that a test makes up."""

import csv
import importlib
import runpy
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.docs.conftest import TREE


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The modules of the benchmark, as its script imports them."""
    monkeypatch.syspath_prepend(TREE / "benchmarks")
    names = ("bench_table", "measures")
    found: dict[str, ModuleType] = {name: importlib.import_module(name) for name in names}
    return SimpleNamespace(**found)


@pytest.fixture
def table(modules: SimpleNamespace) -> Any:
    sample = modules.measures.Sample
    names = {"repoagent": "repoagent 0.1", "repoagent, process": "repoagent 0.1", "Triton": "Triton 2.51"}
    samples = {
        (case, name): [sample(rate, 0.05) for rate in (1000.0 * number, 1100.0 * number, 900.0 * number)]
        for case in modules.bench_table.CASES
        for number, name in enumerate(names, start=1)
    }
    (last, *_) = reversed(samples)
    return modules.bench_table.Table(samples, {last}, names, "2 cores (a processor), Linux, Python 3.11", 2)


def test_the_page_has_the_medians_their_ratios_and_the_spread(modules: SimpleNamespace, table: Any) -> None:
    page = modules.bench_table.page(table)
    assert "| HTTP, JSON | 8 | 1,000, **0.33** (900 to 1,100) | 2,000, **0.67** (1,800 to 2,200) |" in page
    assert page.count("(noisy)") == 1
    assert "3 of 2 s for each cell" in page


def test_the_page_is_written_as_every_other_one(modules: SimpleNamespace, table: Any) -> None:
    words = runpy.run_path(str(Path(__file__).with_name("words.py")))
    assert words["faults"](modules.bench_table.page(table)) == []


@pytest.mark.slow
def test_the_page_the_data_and_the_plot_lie_together(modules: SimpleNamespace, table: Any, tmp_path: Path) -> None:
    modules.bench_table.write(table, tmp_path / "measurements")
    with (tmp_path / "measurements" / "data" / "beside_triton.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["protocol"] for row in rows] == ["HTTP, JSON"] * 3 + ["gRPC"] * 3 + ["HTTP, own process"] * 3
    assert rows[-1] == {"protocol": "HTTP, own process", "connections": "32", "Triton": "3000", "repoagent": "2000"}
    assert (tmp_path / "img" / "beside_triton.svg").read_text().startswith("<svg")


def test_a_sample_that_others_disturbed_does_not_count_if_there_is_another(modules: SimpleNamespace) -> None:
    sample = modules.measures.Sample
    calm, disturbed = sample(100.0, 0.1), sample(50.0, 0.5)
    assert modules.bench_table.quiet([disturbed, calm]) == [calm]
    assert modules.bench_table.quiet([disturbed]) == [disturbed]
    assert modules.bench_table.quiet([disturbed], only=True) == []
