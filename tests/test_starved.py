"""The run that starves tests: its order, what it stops, and that nothing stays stopped."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import starved

ITEMS = [SimpleNamespace(path=Path(name), number=number) for name in "abcdefgh" for number in range(8)]


@pytest.fixture
def child() -> Any:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def order(monkeypatch: pytest.MonkeyPatch, seed: str) -> list[Any]:
    monkeypatch.setenv(starved.SEED, seed)
    items: list[Any] = list(ITEMS)
    starved.pytest_collection_modifyitems(items)
    return items


def test_a_seed_repeats_the_order_and_files_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    first = order(monkeypatch, "1")
    assert first == order(monkeypatch, "1")
    assert first != order(monkeypatch, "2")
    assert sorted(map(id, first)) == sorted(map(id, ITEMS))
    assert [item.path for item in first[::8]] == [item.path for item in first[7::8]]
    assert [item.path for item in first] != [item.path for item in ITEMS]
    assert [item.number for item in first[:8]] != list(range(8))


def test_without_a_seed_the_order_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(starved.SEED, raising=False)
    items: list[Any] = list(ITEMS)
    starved.pytest_collection_modifyitems(items)
    assert items == ITEMS


def test_a_process_is_stopped_and_goes_on(child: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def look(_: float) -> None:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        seen.append("stopped" if os.WIFSTOPPED(status) else "ended")

    monkeypatch.setattr("tests.starved.time.sleep", look)
    starved.stop_one([child.pid], random.Random(1))
    assert seen == ["stopped"]
    _, status = os.waitpid(child.pid, os.WCONTINUED)
    assert os.WIFCONTINUED(status)


def test_what_a_test_has_stopped_itself_is_left_alone(
    child: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.starved.time.sleep", lambda _: pytest.fail("it was stopped once more"))
    os.kill(child.pid, signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    starved.stop_one([child.pid], random.Random(1))
    os.kill(child.pid, signal.SIGCONT)


def test_children_of_children_are_found() -> None:
    script = (
        "import subprocess\n"
        "below = subprocess.Popen(['cat'], stdin=subprocess.PIPE)\n"
        "print(below.pid, flush=True)\n"
        "input()\n"
        "below.stdin.close()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as one:
        assert one.stdout is not None
        below = int(one.stdout.readline())
        assert below in starved.descendants(os.getpid())
        assert one.pid in starved.descendants(os.getpid())
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.close()
