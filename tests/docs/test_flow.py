"""The README's first picture is the one that its script draws, and shows agents that there are."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMAGE = ROOT / "docs" / "img" / "flow.svg"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "img" / "draw_flow.py"))


def test_it_is_what_the_script_draws(script: dict[str, Any]) -> None:
    assert IMAGE.read_text(encoding="utf-8") == script["draw"]()


def test_it_shows_fetch_verify_decrypt_and_convert_in_this_order(script: dict[str, Any]) -> None:
    agents = [box.name for box in script["BOXES"] if box.agent]
    assert agents == ["fetch", "verify", "decrypt", "convert"]
    assert [name for name in agents if not (ROOT / "agents" / name).is_dir()] == []
    drawn = re.findall(r'<text x="(\d+)"[^>]* font-weight="bold"[^>]*>([^<]+)', IMAGE.read_text(encoding="utf-8"))
    assert [name for _, name in sorted(drawn, key=lambda pair: int(pair[0])) if name in agents] == agents


def test_it_is_the_first_picture_of_the_readme() -> None:
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert pictures[0] == "docs/img/flow.svg"
