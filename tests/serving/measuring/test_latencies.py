"""What is kept of single requests, and of which models."""

from repoagent.config import read_text
from repoagent.serving.measuring.latencies import (
    FIRST_RESPONSE,
    LOOKUPS,
    PARTS,
    Latencies,
    LatencyOptions,
    RunTime,
    common_run_time,
    unpredictable,
)
from repoagent.serving.measuring.statistics import Durations, ExecutionTimes, ModelStatistics

_DECOUPLED = "model_transaction_policy { decoupled: true }"


def test_nothing_is_kept_unless_somebody_asks() -> None:
    assert LatencyOptions().start(read_text(_DECOUPLED)) is None
    assert ModelStatistics().snapshot().recent is None


def test_requests_of_the_last_minute_are_kept() -> None:
    now = 0
    latencies = Latencies(summaries=True, clock=lambda: now)
    latencies.add(1, 2, 3, 4, 5)
    now = 60 * 10**9
    latencies.add(10, 20, 30, 40, 50)
    latencies.add(100, 200)
    assert {name: list(values) for name, values in latencies.recent().parts.items() if name in PARTS} == {
        "request": [1, 10, 100],
        "queue": [2, 20, 200],
        "compute_input": [3, 30],
        "compute_infer": [4, 40],
        "compute_output": [5, 50],
    }
    now += 1
    assert latencies.recent().parts["request"] == [10, 100]


def test_only_so_many_are_kept() -> None:
    latencies = Latencies(summaries=True, clock=lambda: 0)
    for number in range(10_000):
        latencies.add(number)
    assert latencies.recent().parts["request"] == list(range(10_000 - 8192, 10_000))


def test_statistics_tell_of_every_kind_of_success() -> None:
    statistics = ModelStatistics(LatencyOptions(summaries=True).start(read_text("")))
    statistics.record(1, 0, ExecutionTimes(1, 3, 6, 10))
    statistics.record_success(1, 0, ExecutionTimes(10, 30, 60, 100))
    statistics.record_cache_hit(5, 1, 7)
    statistics.record_composed(1, 9, Durations(1, 2, 3, 4))
    recent = statistics.snapshot().recent
    assert recent is not None
    assert [list(recent.parts[name]) for name in PARTS] == [
        [10, 100, 2, 9],
        [1, 10, 0, 1],
        [2, 20, 2],
        [3, 30, 3],
        [4, 40, 4],
    ]


def test_the_bounds_of_the_histogram_come_from_the_model() -> None:
    own = f'{_DECOUPLED} model_metrics {{ metric_control [ {{ metric_identifier {{ family: "{FIRST_RESPONSE}" }} '
    own += "histogram_options { buckets: [ 1, 2.5 ] } } ] }"
    for text, bounds in ((_DECOUPLED, [100, 500, 2000, 5000]), (own, [1, 2.5])):
        latencies = LatencyOptions(histograms=True).start(read_text(text))
        assert latencies is not None
        latencies.add_first_response(2_000_000)
        histogram = latencies.recent().first_response
        assert histogram is not None
        counts, total = histogram.cumulated()
        assert [bound for bound, _ in counts[:-1]] == bounds
        assert (counts[-1][1], total) == (1, 2)


def test_a_model_that_answers_once_has_its_first_response_with_its_success() -> None:
    statistics = ModelStatistics(LatencyOptions(histograms=True).start(read_text("")))
    statistics.record_success(1, 0, ExecutionTimes(10, 30, 60, 200 * 10**6))
    recent = statistics.snapshot().recent
    assert recent is not None
    assert recent.first_response is not None
    counts, total = recent.first_response.cumulated()
    assert (total, counts[0][1], counts[-1][1]) == (200, 0, 1)


def test_lookups_in_the_response_cache_are_kept() -> None:
    statistics = ModelStatistics(LatencyOptions(summaries=True).start(read_text("")))
    statistics.record_cache_hit(5, 1, 7)
    statistics.record_cache_miss(9)
    recent = statistics.snapshot().recent
    assert recent is not None
    assert [list(recent.parts[name]) for name in LOOKUPS] == [[1], [9]]


MS = 1_000_000


def paced(*durations_ns: int) -> RunTime:
    """The run_time of a model that was quick for long and then took that long."""
    run_time = RunTime()
    for duration in [1000] * 200 + list(durations_ns):
        run_time.note(duration)
    return run_time


def test_nothing_is_promised_before_the_first_run() -> None:
    run_time = RunTime()
    assert not run_time.quick
    assert run_time.usual_ns >= 10 * MS


def test_a_model_whose_runs_are_short_is_quick_soon() -> None:
    run_time = RunTime()
    run_time.note(1000)
    assert run_time.quick
    for _ in range(5):
        run_time.note(1000)
    assert run_time.usual_ns < MS


def test_a_run_that_was_interrupted_is_forgiven() -> None:
    assert paced(4 * MS).quick


def test_a_slow_run_is_held_against_the_model_and_paid_back() -> None:
    run_time = paced(10 * MS)
    assert not run_time.quick
    assert run_time.usual_ns < MS
    for _ in range(100):
        run_time.note(1000)
    assert run_time.quick


def test_a_model_that_is_slow_on_average_is_never_quick() -> None:
    run_time = paced(1000 * MS)
    seen = []
    for _ in range(20):
        for duration in [1000] * 99 + [1000 * MS]:
            run_time.note(duration)
            seen.append(run_time.quick)
    assert not any(seen)


def test_a_model_may_change_its_ways() -> None:
    run_time = paced(*[1000 * MS] * 1000)
    assert run_time.usual_ns > 10 * MS
    for _ in range(20_000):
        run_time.note(1000)
    assert run_time.quick
    assert run_time.usual_ns < MS


def test_waiting_for_a_processor_is_not_held_against_a_model_that_only_computes() -> None:
    run_time = paced(10 * MS)
    for _ in range(100):
        run_time.note_computing(5 * MS, 1000)
    assert run_time.quick
    assert run_time.usual_ns < MS


def test_computing_for_long_is() -> None:
    run_time = paced()
    for _ in range(300):
        run_time.note_computing(MS, MS)
    assert not run_time.quick
    assert MS <= run_time.usual_ns < 10 * MS


def test_a_wait_of_unknown_length_is_held_against_it_for_a_while() -> None:
    run_time = paced()
    run_time.note_computing(60_000 * MS)
    assert not run_time.quick
    for _ in range(1100):
        run_time.note_computing(1000, 1000)
    assert run_time.quick


def test_instances_that_share_a_pace_have_it_in_common() -> None:
    run_time = paced()
    assert common_run_time([run_time, run_time]) is run_time


def test_instances_of_different_paces_promise_nothing() -> None:
    for paces in ([paced(), paced()], [paced(), unpredictable()], []):
        common = common_run_time(paces)
        assert not common.quick
        assert common.usual_ns > 10 * MS
