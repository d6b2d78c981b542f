"""What is kept of single requests, and of which models."""

from repoagent.config import read_text
from repoagent.serving.measuring.latencies import FIRST_RESPONSE, LOOKUPS, PARTS, Latencies, LatencyOptions
from repoagent.serving.measuring.statistics import ExecutionTimes, ModelStatistics

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
    statistics.record_composed(1, request_ns=9, queue_ns=1, input_ns=2, infer_ns=3, output_ns=4)
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
