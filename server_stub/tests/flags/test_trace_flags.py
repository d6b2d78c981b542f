"""``--trace-config``, up to the file that it makes."""

from typing import Any

import click
import pytest
from repoagent_server.flags.trace_flags import trace_settings

from repoagent.serving.tracing.trace_settings import SpanSettings, TraceSettings


def test_tritons_example_is_understood() -> None:
    pairs = [
        ("triton", "file", "/tmp/trace.json"),
        ("triton", "log-frequency", "50"),
        ("", "rate", "100"),
        ("", "level", "TIMESTAMPS"),
        ("", "level", "TENSORS"),
        ("", "count", "100"),
        ("", "mode", "triton"),
    ]
    assert trace_settings(pairs) == TraceSettings(
        level=frozenset({"TIMESTAMPS", "TENSORS"}), rate=100, count=100, log_frequency=50, file="/tmp/trace.json"
    )


def test_spans_have_tritons_settings() -> None:
    pairs = [
        ("", "mode", "opentelemetry"),
        ("", "level", "TIMESTAMPS"),
        ("", "rate", "0"),
        ("opentelemetry", "url", "http://collector:4318/v1/traces"),
        ("opentelemetry", "resource", "service.name=models"),
        ("opentelemetry", "resource", "service.version=1"),
        ("opentelemetry", "bsp_max_queue_size", "4096"),
        ("opentelemetry", "bsp_schedule_delay", "100"),
        ("opentelemetry", "bsp_max_export_batch_size", "64"),
    ]
    spans = SpanSettings(
        url="http://collector:4318/v1/traces",
        resource=(("service.name", "models"), ("service.version", "1")),
        bsp_max_queue_size=4096,
        bsp_schedule_delay=100,
        bsp_max_export_batch_size=64,
    )
    expected = TraceSettings(level=frozenset({"TIMESTAMPS"}), rate=0, mode="opentelemetry", spans=spans)
    assert trace_settings(pairs) == expected


def test_tensors_are_refused_in_spans() -> None:
    with pytest.raises(click.UsageError, match="Tensor level tracing is not supported by the mode: opentelemetry"):
        trace_settings([("", "mode", "opentelemetry"), ("", "level", "TENSORS")])


def test_nothing_is_traced_without_the_flag() -> None:
    assert trace_settings([]) == TraceSettings()


@pytest.mark.parametrize(
    ("pair", "text"),
    [
        (("", "file", "x"), "unknown setting 'file'; use rate, count, mode, level, triton,file, triton,log-frequency"),
        (("opentelemetry", "port", "x"), "unknown setting 'opentelemetry,port'"),
        (("opentelemetry", "resource", "x"), "opentelemetry,resource must be <key>=<value>, not 'x'"),
        (("opentelemetry", "bsp_schedule_delay", "0"), "must be a whole number above 0, not '0'"),
        (("", "mode", "jaeger"), "unknown trace mode 'jaeger'; there are triton and opentelemetry"),
        (("", "level", "TIMESTAMPS"), "trace file name is not given"),
        (("", "rate", "x"), "'x' is not a whole number"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_use(pair: tuple[str, str, str], text: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        trace_settings([pair])
    assert text in str(caught.value)


def test_the_former_flags_for_traces_mean_what_their_successors_do(parse: Any) -> None:
    former = parse(
        "--trace-file=/tmp/t",
        "--trace-level=timestamps",
        "--trace-level=tensors",
        "--trace-rate=7",
        "--trace-count=8",
        "--trace-log-frequency=9",
    )
    assert former.trace == TraceSettings(
        file="/tmp/t", level=frozenset({"TIMESTAMPS", "TENSORS"}), rate=7, count=8, log_frequency=9
    )
    assert parse("--trace-rate=7", "--trace-config=rate=70").trace.rate == 70, "the new name wins"
    assert parse("--trace-file=/tmp/t", "--trace-level=max", "--trace-level=off").trace.level == frozenset()
    assert parse("--trace-file=/tmp/t", "--trace-level=MIN").trace.level == {"TIMESTAMPS"}
