"""The picture of the demo in the tutorial shows the demo as it is."""

import re
import runpy
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from repoagent.config import agent_entries, read_text

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = ROOT / "examples" / "digits" / "repository"
SECURE = "digits_secure"
CHAT = ("fetch", "verify", "decrypt", "convert")


@pytest.fixture(scope="module")
def recorder() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "img" / "record_demo.py"))


@pytest.fixture(scope="module")
def lines() -> list[str]:
    image = (ROOT / "docs" / "img" / "demo.svg").read_text()
    drawn: dict[float, str] = {}
    for y, text in re.findall(r'<text class="demo-r\d+"[^>]* y="([\d.]+)"[^>]*>([^<]*)</text>', image):
        drawn[float(y)] = drawn.get(float(y), "") + unescape(text).replace("\xa0", " ")
    return [line.rstrip() for _, line in sorted(drawn.items())]


def test_it_shows_the_models_of_the_demo_repository(lines: list[str]) -> None:
    served = next(line for line in lines if line.startswith("repoagent serves "))
    assert [model.name for model in sorted(REPOSITORY.iterdir()) if model.name not in served] == []


def test_it_shows_the_agents_of_the_encrypted_models_in_their_order(lines: list[str]) -> None:
    config = read_text((REPOSITORY / SECURE / "config.pbtxt").read_text())
    assert [line.split()[0] for line in lines if re.match(r"\w+ +LOAD ", line)] == [
        *(entry.name for entry in agent_entries(config)),
        *CHAT,
    ]


def test_it_ends_with_a_question_and_a_story(lines: list[str]) -> None:
    text = " ".join(lines)
    question, answer, wish, story = re.findall(r"(?:you|elmbrook): (.*?)(?= (?:you|elmbrook): |$)", text)
    assert (question, answer.strip()) == ("Who is the baker?", "The baker of Elmbrook is Ada.")
    assert wish.startswith("Tell me a story")
    assert len(story.split()) > 40


def test_it_shows_no_failure(lines: list[str]) -> None:
    predicted = [re.fullmatch(r"predicted (\d), expected (\d)", line) for line in lines if "predicted" in line]
    assert len(predicted) == 10
    assert all(match is not None and match[1] == match[2] for match in predicted)
    assert not any(" failed " in line for line in lines)


def test_nothing_in_it_changes_from_run_to_run(lines: list[str], recorder: dict[str, Any]) -> None:
    assert [recorder["steady"](line) for line in lines] == lines


@pytest.mark.slow
def test_the_demo_still_prints_these_lines(lines: list[str], recorder: dict[str, Any]) -> None:
    printed = [line.split()[:3] for line in recorder["recorded"]().splitlines() if line]
    assert [line.split()[:3] for line in lines if line and not line.startswith("$")] == printed


def test_showing_it_fetches_nothing() -> None:
    image = (ROOT / "docs" / "img" / "demo.svg").read_text()
    assert [word for word in ("url(http", "href", "@font-face") if word in image] == []
