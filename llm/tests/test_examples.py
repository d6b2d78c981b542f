"""The examples run and print what they promise."""

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "executor"
# All but what makes their model.
SHOWN = {path.name for path in EXAMPLES.glob("*.py")} - {"example_model.py", "synthetic.py"}
Run = Callable[[str], list[str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """``run(name)``: what a program prints; in this process, for most of its second are imports."""
    monkeypatch.syspath_prepend(EXAMPLES)

    def lines(name: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [name])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return lines


@pytest.mark.slow
def test_one_request() -> None:
    """As a program of its own."""
    command = [sys.executable, str(EXAMPLES / "one_request.py")]
    (line,) = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout.splitlines()
    assert line.startswith("request 1: [")
    assert line.endswith("(LENGTH)")


def test_streaming_and_many_at_once(run: Run) -> None:
    lines = run("streaming.py")
    assert {line.split(":")[0] for line in lines} == {f"request {number}" for number in range(1, 5)}


def test_beams(run: Run) -> None:
    scores = [float(line.split()[0]) for line in run("beams.py")]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)


def test_post_processor(run: Run) -> None:
    plain, named, given = (json.loads(line) for line in run("post_processor.py"))
    assert any(token % 2 for token in plain)
    assert named == given
    assert not any(token % 2 for token in named)


def test_guided_json(run: Run) -> None:
    lines = run("guided_json.py")
    assert len(lines) == 3
    assert all("'colour'" in line for line in lines)


def test_lora(run: Run) -> None:
    plain, first, second, again = (line.split(": ") for line in run("lora.py"))
    assert [plain[0], first[0], second[0], again[0]] == ["no adapter", "task 1", "task 2", "task 1"]
    assert first[1] == again[1]
    assert len({plain[1], first[1], second[1]}) == 3


def test_draft_model(run: Run) -> None:
    alone, drafted = (line.split(": ") for line in run("draft_model.py"))
    assert alone[0] == "21 steps, 0 of 0 drafts right"
    assert drafted[0] == "5 steps, 16 of 16 drafts right"
    assert alone[1] == drafted[1]


def test_statistics(run: Run) -> None:
    first, second, stats = run("reading_statistics.py")
    assert "0 blocks reused" in first
    assert "3 blocks reused" in second
    assert json.loads(stats)["kvCacheStats"]["reusedBlocks"] == 3


def test_the_timeline_shows_requests_waiting_reading_and_generating_at_once(run: Run) -> None:
    root = ET.fromstring("\n".join(run("timeline.py")))
    cells = [item for item in root.iter("{http://www.w3.org/2000/svg}rect") if item.get("width") == "12"]
    columns: dict[str | None, set[str | None]] = {}
    for cell in cells[3:]:  # the first three are the key
        columns.setdefault(cell.get("x"), set()).add(cell.get("fill"))
    assert {len(colors) for colors in columns.values()} == {1, 2, 3}


def test_every_example_is_tested_and_listed() -> None:
    tested = Path(__file__).read_text()
    listed = (EXAMPLES / "README.md").read_text()
    for name in SHOWN:
        assert f'"{name}")' in tested
        assert f"`{name}`" in listed


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_examples_stay_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) <= 80
