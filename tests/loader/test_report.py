"""Building and printing load reports."""

import json

import pytest

from repoagent.api.report import ActionReport, EntryReport, LoadReport
from repoagent.errors import AgentRefusedError, CancelledError
from repoagent.loader.chain_entry import measured
from repoagent.loader.report import EntryRecorder, ReportBuilder


def test_a_report_grows_and_stops_its_clock_at_the_first_end() -> None:
    times = iter([10.0, 10.5, 11.0, 99.0])
    builder = ReportBuilder("m", clock=lambda: next(times))
    recorder = builder.entry("a", "config")
    assert builder.build() == LoadReport("m", "loading", 0.5, (EntryReport(0, "a", "config"),))
    recorder.add(3, 4, {"f": "d"}, "n")
    recorder.finish("LOAD", "ok", 0.25, None)
    builder.end("loaded")
    builder.end("unloading")
    action = ActionReport("LOAD", "ok", 0.25, 3, 4, {"f": "d"}, ("n",), None)
    assert builder.build() == LoadReport("m", "unloading", 1.0, (EntryReport(0, "a", "config", (action,)),))


def test_lines_are_aligned_and_say_seconds_and_bytes() -> None:
    report = LoadReport(
        "m",
        "failed",
        1.5,
        (
            EntryReport(0, "checksum", "config", (ActionReport("LOAD", "ok", 0.01234, 999, 1000),)),
            EntryReport(1, "x", "policy", (ActionReport("LOAD", "failed", 2.0, 0, 2_500_000_000, error="no key"),)),
        ),
        error="agent 'x': no key",
    )
    assert str(report).splitlines() == [
        "model 'm' failed after 1.500 s: agent 'x': no key",
        "  checksum  LOAD             ok            0.012 s  read    999 B  written   1.0 kB",
        "  x         LOAD             failed        2.000 s  read      0 B  written   2.5 GB  no key",
    ]
    assert LoadReport("m", "loading", 0.0).lines() == []


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (3 * 10**15, "3000.0 TB"),
    ],
)
def test_sizes_are_readable(count: int, text: str) -> None:
    report = LoadReport("m", "loaded", 0.0, (EntryReport(0, "a", "config", (ActionReport("LOAD", "ok", 0.0, count),)),))
    assert f"read {text:>8}  " in report.lines()[0]


def test_the_json_form_has_everything() -> None:
    action = ActionReport("LOAD", "ok", 0.5, 1, 2, {"f": "d"}, ("n",))
    report = LoadReport("m", "loaded", 1.0, (EntryReport(0, "a", "config", (action,)),))
    assert (
        json.loads(report.to_json())
        == report.to_dict()
        == {
            "model": "m",
            "outcome": "loaded",
            "seconds": 1.0,
            "error": None,
            "size": 0,
            "entries": [
                {
                    "index": 0,
                    "agent": "a",
                    "origin": "config",
                    "actions": [
                        {
                            "action": "LOAD",
                            "outcome": "ok",
                            "seconds": 0.5,
                            "bytes_read": 1,
                            "bytes_written": 2,
                            "digests": {"f": "d"},
                            "notes": ["n"],
                            "error": None,
                            "signers": [],
                            "evidence": [],
                        }
                    ],
                }
            ],
        }
    )


@pytest.mark.parametrize(
    ("error", "outcome", "text"),
    [
        (AgentRefusedError("a", "why"), "failed", "why"),
        (ValueError("why"), "failed", "why"),
        (ValueError(), "failed", "ValueError"),
        (CancelledError("enough"), "cancelled", "enough"),
    ],
)
def test_a_measured_failure_is_recorded_and_passes_through(error: Exception, outcome: str, text: str) -> None:
    recorder = EntryRecorder(0, "a", "config")
    with pytest.raises(type(error)), measured(recorder, "LOAD", only_failures=True):
        raise error
    (action,) = recorder.build().actions
    assert (action.outcome, action.error) == (outcome, text)


def test_a_measured_success_is_recorded_unless_only_failures_count() -> None:
    recorder = EntryRecorder(0, "a", "config")
    with measured(recorder, "INITIALIZE", only_failures=True):
        recorder.add(1, 0, None, "")
    with measured(recorder, "LOAD"):
        recorder.add(2, 0, None, "")
    assert [(action.action, action.bytes_read) for action in recorder.build().actions] == [("LOAD", 3)]


def test_a_report_comes_back_from_what_it_was_sent_as() -> None:
    action = ActionReport("LOAD", "ok", 0.5, 1, 2, {"SHA256:a": "00"}, ("note",), None)
    report = LoadReport("m", "loaded", 1.0, (EntryReport(0, "a", "config", (action,)),))
    assert LoadReport.from_dict(json.loads(report.to_json())) == report
