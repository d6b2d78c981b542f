"""Conversions by many processes at once, by processes that are killed, and of what reaches out of the model."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from repoagent.errors import CancelledError
from repoagent.limits import Limits
from repoagent.storage.repositories.sources import open_source
from repoagent.testing import AgentHarness
from tests.loader.converting.conftest import Converting, converting, marks
from tests.loader.converting.samples import CONVERTERS
from tests.processes import runs
from tests.waiting import until

__all__ = ["converting", "marks"]

pytestmark = pytest.mark.slow
_PROGRAM: Final = """
import json, sys
from pathlib import Path
from repoagent.storage.repositories.sources import open_source
from repoagent.testing import AgentHarness
from tests.loader.converting.conftest import Converting, converting
from tests.loader.converting.samples import CONVERTERS

directory, options = Path(sys.argv[1]), json.loads(sys.argv[2])
with AgentHarness(directory / "harness", converters=CONVERTERS) as harness:
    converting = Converting(directory, harness)
    outcome = converting.run(**options)
    print(json.dumps([result.built for result in converting.results]), str(outcome.error or ""))
"""
_ROOT: Final = Path(__file__).parents[2]


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """Start a process that loads a model whose agent converts; all share one cache and one workspace."""

    def start(**options: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", _PROGRAM, str(tmp_path), json.dumps(options)]
        return subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)

    return start


def test_eight_processes_that_ask_at_once_build_once(
    start: Callable[..., "subprocess.Popen[str]"], tmp_path: Path, marks: Path
) -> None:
    processes = [start(mark=str(marks), name=f"m{number}") for number in range(8)]
    answers = sorted(process.communicate(timeout=120)[0].strip() for process in processes)
    assert answers == ["[false]"] * 7 + ["[true]"]
    assert len(list(marks.iterdir())) == 1


def test_a_server_that_is_killed_in_a_build_takes_the_build_along_and_leaves_nothing_half_done(
    start: Callable[..., "subprocess.Popen[str]"], tmp_path: Path, marks: Path
) -> None:
    with start(mark=str(marks), then="sleep") as process:
        while not (begun := [mark for mark in marks.iterdir() if mark.read_text()]):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    until(lambda: not runs(int(begun[0].name)))
    assert not [path for path in (tmp_path / "harness/cache/objects").iterdir() if not path.name.startswith(".")]
    with AgentHarness(tmp_path / "harness", converters=CONVERTERS) as harness:
        converting = Converting(tmp_path, harness)
        assert converting.run().files["1/model.upper"] == b"ABC"
        assert harness.left_over() == []
    (kept,) = (tmp_path / "harness/cache/objects").iterdir()
    assert sorted(path.name for path in kept.iterdir()) == ["model.upper", "model.upper.intoto.json"]


@pytest.mark.parametrize("confidential", [False, True])
@pytest.mark.parametrize("to", ["linking", "piping"])
def test_a_converter_cannot_leave_a_link_to_a_file_of_the_server_or_a_pipe(
    to: str, confidential: bool, converting: Converting
) -> None:
    converting.confidential = confidential
    outcome = converting.run(to)
    assert "link or a special file" in str(outcome.error)
    assert outcome.files == {}
    assert outcome.left == ()


def test_an_input_outside_of_the_model_is_refused_before_anything_is_read(converting: Converting) -> None:
    assert "contains '..'" in str(converting.run("outside").error)


def test_an_input_that_is_a_link_is_refused(converting: Converting) -> None:
    root = converting.prepare()
    (root / "1" / "model.txt").unlink()
    (root / "1" / "model.txt").symlink_to("/etc/hostname")
    outcome = converting.harness.run(root)
    assert outcome.error is not None
    assert outcome.files == {}


def test_the_process_that_builds_inherits_no_setting_of_the_server(
    converting: Converting, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPOAGENT_SECRET", "s3cret")
    converting.run(mark=str(marks), then="environment")
    assert "REPOAGENT_SECRET" not in json.loads((marks / "environment").read_text())


@pytest.mark.parametrize(
    ("then", "text"),
    [
        ("garbage", "a line of a converter's process cannot be read"),
        ("flood", "reports more than 4194304 bytes at once"),
    ],
)
def test_a_process_that_writes_nonsense_is_ended_and_refuses_the_load(
    then: str, text: str, converting: Converting
) -> None:
    outcome = converting.run(then=then)
    assert text in str(outcome.error)
    assert outcome.left == ()


def test_what_a_process_reports_is_one_short_line(converting: Converting) -> None:
    outcome = converting.run(then="forge")
    assert outcome.error is None
    seen: list[str] = []
    source = open_source("m", str(converting.model("xyz")))
    chain = converting.harness.loader.load(source, on_progress=lambda step: seen.append(step.what))
    chain.fail(RuntimeError("enough"))
    assert any("a line" in what for what in seen)
    assert all(len(what) <= 200 and "\n" not in what for what in seen)


def test_a_reason_for_a_refusal_cannot_be_two_lines_of_the_log(converting: Converting) -> None:
    text = str(converting.run(then="inject").error)
    assert text == "agent 'shout': 1/model.txt: a name INFO of the  [31mmodel"


def test_the_end_of_a_build_kills_no_process_that_has_its_number_by_then(
    converting: Converting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the group is killed the process itself must not have been collected yet."""
    real, states = os.killpg, []

    def killpg(group: int, number: int) -> None:
        states.append(Path(f"/proc/{group}/stat").read_text().rpartition(")")[2].split()[0])
        real(group, number)

    monkeypatch.setattr(os, "killpg", killpg)
    assert converting.run().error is None
    assert states == ["Z"]


def test_the_memory_of_a_process_that_converts_plaintext_is_never_dumped(converting: Converting, marks: Path) -> None:
    converting.confidential = True
    assert converting.run(mark=str(marks), then="shield").error is None
    assert json.loads((marks / "shield").read_text()) == {"dumpable": 0, "limit": 0}


# Converters, or code of a model that has taken one over, that leave odd things, say odd things, or never stop.


def _refused(converting: Converting, then: str, **options: str) -> str:
    outcome = converting.run("leaving", then=then, **options)
    assert outcome.error is not None
    assert outcome.files == {}
    assert outcome.left == ()
    assert not list(converting.harness.cache.glob("objects/*"))
    text = str(outcome.error)
    assert text.isprintable(), text
    text.encode()
    return text


def test_a_hard_link_to_another_file_is_no_result(converting: Converting, tmp_path: Path) -> None:
    """Wiping one would wipe the other, and whoever changes one changes the other."""
    other = tmp_path / "other"
    other.write_text("of the server")
    assert "model.upper, which is a link or a special file" in _refused(converting, "hard_link", mark=str(other))
    assert other.read_text() == "of the server"


@pytest.mark.parametrize("confidential", [False, True])
def test_two_names_of_one_file_are_no_result(converting: Converting, confidential: bool) -> None:
    converting.confidential = confidential
    assert "which is a link or a special file" in _refused(converting, "two_names")


def test_a_result_without_end_ends_with_the_time_of_the_build(tmp_path: Path) -> None:
    """A sparse file takes no room, and its digest would take hours."""
    with AgentHarness(tmp_path / "harness", converters=CONVERTERS, limits=Limits(build_seconds=2)) as harness:
        assert "it took more than 2 s" in _refused(Converting(tmp_path, harness), "sparse")


def test_a_cancelled_load_does_not_wait_for_a_digest(converting: Converting) -> None:
    cancelled = threading.Event()
    root = converting.prepare("leaving", then="sparse")
    timer = threading.Timer(3, cancelled.set)
    timer.start()
    with pytest.raises(CancelledError, match="cancelled"):
        converting.harness.loader.load(open_source("m", str(root)), cancelled=cancelled.is_set)
    timer.join()
    assert converting.harness.left_over() == []


def test_directories_deeper_than_a_path_is_long_are_refused_and_removed(converting: Converting) -> None:
    assert "deep" in _refused(converting, "deep")


def test_a_name_that_is_no_text_is_refused(converting: Converting) -> None:
    assert "whose name is not plain text" in _refused(converting, "odd_name")


def test_a_gigabyte_of_print_is_read_and_forgotten(converting: Converting) -> None:
    assert converting.run("leaving", then="gigabyte").files["1/model.upper"] == b"ABC"


@pytest.mark.parametrize(
    ("then", "text"),
    [("odd_error", "Odd, which has no text"), ("system_exit", "SystemExit: enough")],
)
def test_what_is_no_exception_of_ours_refuses_the_load(converting: Converting, then: str, text: str) -> None:
    assert text in _refused(converting, then)


def test_a_message_that_is_no_text_reaches_clients_and_logs_as_one(
    converting: Converting, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert "ValueError:" in _refused(converting, "surrogates")
    for record in caplog.records:
        json.dumps(record.getMessage()).encode()
        record.getMessage().encode()
