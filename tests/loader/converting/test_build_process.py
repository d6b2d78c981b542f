"""The process that builds: how it fails, how it is ended, and that nothing of it stays."""

import os
import threading
import time
from pathlib import Path

import pytest

from repoagent.errors import CancelledError
from repoagent.limits import Limits
from repoagent.loader.converting.build_process import _Watch
from repoagent.loader.converting.messages import parse
from repoagent.storage.repositories.sources import open_source
from repoagent.testing import AgentHarness
from tests.loader.converting.conftest import Converting
from tests.loader.converting.samples import CONVERTERS
from tests.processes import runs
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("then", "text"),
    [
        ("refuse", "1/model.txt: there are no letters"),
        ("raise", "ValueError: surprised"),
        ("memory", "there is not enough memory for the conversion"),
        ("abort", "the converter from 'text' to 'upper' crashed with SIGABRT: the last words"),
        ("kill", "the converter from 'text' to 'upper' was killed, as the system does where memory runs out"),
        ("exit", "the converter from 'text' to 'upper' ended with status 3 and without a result"),
    ],
)
def test_a_build_that_fails_refuses_the_load_and_leaves_nothing(then: str, text: str, converting: Converting) -> None:
    outcome = converting.run(then=then)
    assert text in str(outcome.error)
    assert outcome.left == ()
    assert not list(converting.harness.cache.glob("objects/*"))
    assert not list(converting.harness.cache.glob("objects/.*"))


@pytest.mark.parametrize("then", ["wait", "babble"])
def test_a_build_that_takes_too_long_is_ended_and_refuses_the_load(then: str, tmp_path: Path) -> None:
    limits = Limits(build_seconds=1)
    with AgentHarness(tmp_path / "harness", converters=CONVERTERS, limits=limits) as harness:
        outcome = Converting(tmp_path, harness).run(then=then)
        assert "the converter from 'text' to 'upper' was ended: it took more than 1 s" in str(outcome.error)
        assert "--limit-build-seconds" in str(outcome.error)
        assert outcome.left == ()
        assert not list(harness.cache.glob("objects/*"))
        assert not list(harness.cache.glob("objects/.*"))


def test_a_limit_of_0_seconds_is_no_limit(tmp_path: Path) -> None:
    limits = Limits(build_seconds=0)
    with AgentHarness(tmp_path / "harness", converters=CONVERTERS, limits=limits) as harness:
        assert Converting(tmp_path, harness).run().files["1/model.upper"] == b"ABC"


def test_a_build_that_refuses_for_now_is_not_tried_a_second_time_as_if_the_cache_were_full(
    converting: Converting, marks: Path
) -> None:
    outcome = converting.run(then="unavailable", mark=str(marks))
    assert "1/model.txt: the device is busy" in str(outcome.error)
    assert len(list(marks.iterdir())) == 1


def test_without_an_interpreter_the_refusal_is_clear(converting: Converting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "")
    assert "needs a Python interpreter for its process" in str(converting.run().error)


def test_the_report_of_a_failed_build_has_how_far_it_came(converting: Converting) -> None:
    (action, *_) = converting.run(then="refuse").report.entries[0].actions
    assert action.outcome == "failed"
    assert "got to 1 of 4 (shouting)" in action.notes


def test_what_a_build_prints_disturbs_nothing(converting: Converting) -> None:
    assert converting.run(then="chatter").files["1/model.upper"] == b"ABC"


def test_a_result_that_comes_just_before_the_process_is_seen_to_have_ended_is_not_lost(
    converting: Converting, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = _Watch._status

    def once_it_has_ended(watch: _Watch) -> int | None:
        os.waitid(os.P_PID, watch._process.pid, os.WEXITED | os.WNOWAIT)
        return status(watch)

    monkeypatch.setattr(_Watch, "_status", once_it_has_ended)
    assert converting.run().files["1/model.upper"] == b"ABC"


def test_a_process_that_a_build_leaves_behind_is_ended_and_not_waited_for(converting: Converting, marks: Path) -> None:
    assert converting.run(then="linger", mark=str(marks)).error is None
    until(lambda: not runs(int((marks / "helper").read_text())))


def test_a_cancelled_load_ends_the_build_and_all_that_it_started(converting: Converting, marks: Path) -> None:
    cancelled = threading.Event()
    helper = marks / "helper"

    def cancel() -> None:
        while not (helper.exists() and helper.read_text()):
            time.sleep(0.01)
        cancelled.set()

    root = converting.prepare(then="hang", mark=str(marks))
    watcher = threading.Thread(target=cancel)
    watcher.start()
    with pytest.raises(CancelledError, match="was ended: the load was cancelled"):
        converting.harness.loader.load(open_source("m", str(root)), cancelled=cancelled.is_set)
    watcher.join()
    until(lambda: not runs(int(helper.read_text())))
    assert converting.harness.left_over() == []
    assert not list(converting.harness.cache.glob("objects/.*"))


@pytest.mark.parametrize("done", ["1e999", "-1", "9" * 4000, "NaN"])
def test_progress_without_end_is_no_progress(done: str) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        parse(f'{{"progress": [{done}, null, ""]}}'.encode())
