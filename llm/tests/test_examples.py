"""The examples run and print what they promise."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "executor"
# All but what makes their model.
SHOWN = {path.name for path in EXAMPLES.glob("*.py")} - {"example_model.py", "synthetic.py"}


def _run(name: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_one_request() -> None:
    (line,) = _run("one_request.py")
    assert line.startswith("request 1: [")
    assert line.endswith("(LENGTH)")


@pytest.mark.slow
def test_streaming_and_many_at_once() -> None:
    lines = _run("streaming.py")
    assert {line.split(":")[0] for line in lines} == {f"request {number}" for number in range(1, 5)}


@pytest.mark.slow
def test_beams() -> None:
    scores = [float(line.split()[0]) for line in _run("beams.py")]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)


@pytest.mark.slow
def test_post_processor() -> None:
    plain, named, given = (json.loads(line) for line in _run("post_processor.py"))
    assert any(token % 2 for token in plain)
    assert named == given
    assert not any(token % 2 for token in named)


@pytest.mark.slow
def test_guided_json() -> None:
    lines = _run("guided_json.py")
    assert len(lines) == 3
    assert all("'colour'" in line for line in lines)


@pytest.mark.slow
def test_lora() -> None:
    plain, first, second, again = (line.split(": ") for line in _run("lora.py"))
    assert [plain[0], first[0], second[0], again[0]] == ["no adapter", "task 1", "task 2", "task 1"]
    assert first[1] == again[1]
    assert len({plain[1], first[1], second[1]}) == 3


@pytest.mark.slow
def test_draft_model() -> None:
    alone, drafted = (line.split(": ") for line in _run("draft_model.py"))
    assert alone[0] == "21 steps, 0 of 0 drafts right"
    assert drafted[0] == "5 steps, 16 of 16 drafts right"
    assert alone[1] == drafted[1]


@pytest.mark.slow
def test_statistics() -> None:
    first, second, stats = _run("reading_statistics.py")
    assert "0 blocks reused" in first
    assert "3 blocks reused" in second
    assert json.loads(stats)["kvCacheStats"]["reusedBlocks"] == 3


@pytest.mark.slow
def test_the_timeline_shows_requests_waiting_reading_and_generating_at_once() -> None:
    root = ET.fromstring("\n".join(_run("timeline.py")))
    cells = [item for item in root.iter("{http://www.w3.org/2000/svg}rect") if item.get("width") == "12"]
    columns: dict[str | None, set[str | None]] = {}
    for cell in cells[3:]:  # the first three are the key
        columns.setdefault(cell.get("x"), set()).add(cell.get("fill"))
    assert {len(colors) for colors in columns.values()} == {1, 2, 3}


def test_every_example_is_tested_and_listed() -> None:
    tested = Path(__file__).read_text()
    listed = (EXAMPLES / "README.md").read_text()
    for name in SHOWN:
        assert f'_run("{name}")' in tested
        assert f"`{name}`" in listed


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_examples_stay_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) <= 80
