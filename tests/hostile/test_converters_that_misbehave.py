"""Converters, or code of a model that has taken one over, that leave odd things, say odd things, or never stop."""

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from repoagent.errors import CancelledError
from repoagent.limits import Limits
from repoagent.storage import open_source
from repoagent.testing import AgentHarness
from tests.loader.converting.conftest import Converting
from tests.loader.converting.samples import CONVERTERS

pytestmark = pytest.mark.slow


@pytest.fixture
def converting(tmp_path: Path) -> Iterator[Converting]:
    with AgentHarness(tmp_path / "harness", converters=CONVERTERS) as harness:
        yield Converting(tmp_path, harness)


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
