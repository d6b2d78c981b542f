from repoagent.serving.measuring.statistics import ExecutionTimes, FailureReason, ModelStatistics

ZERO = {"count": 0, "ns": 0}


def test_a_fresh_model_has_tritons_json_with_zeros() -> None:
    assert ModelStatistics().to_dict("m", 3) == {
        "name": "m",
        "version": "3",
        "last_inference": 0,
        "inference_count": 0,
        "execution_count": 0,
        "inference_stats": {
            "success": ZERO,
            "fail": ZERO,
            "queue": ZERO,
            "compute_input": ZERO,
            "compute_infer": ZERO,
            "compute_output": ZERO,
            "cache_hit": ZERO,
            "cache_miss": ZERO,
        },
        "response_stats": {},
        "batch_stats": [],
        "memory_usage": [],
    }


def test_a_request_is_divided_into_its_stages() -> None:
    statistics = ModelStatistics()
    statistics.record(4, 100, ExecutionTimes(start_ns=110, input_end_ns=130, output_start_ns=230, end_ns=235))
    entry = statistics.to_dict("m", 1)
    assert (entry["inference_count"], entry["execution_count"]) == (4, 1)
    assert entry["last_inference"] > 1_700_000_000_000
    stats = entry["inference_stats"]
    assert stats["success"] == {"count": 1, "ns": 135}
    assert stats["queue"] == {"count": 1, "ns": 10}
    assert stats["compute_input"] == {"count": 1, "ns": 20}
    assert stats["compute_infer"] == {"count": 1, "ns": 100}
    assert stats["compute_output"] == {"count": 1, "ns": 5}
    assert entry["batch_stats"] == [
        {
            "batch_size": 4,
            "compute_input": {"count": 1, "ns": 20},
            "compute_infer": {"count": 1, "ns": 100},
            "compute_output": {"count": 1, "ns": 5},
        }
    ]


def test_batched_requests_count_one_execution_by_its_total_size() -> None:
    statistics = ModelStatistics()
    times = ExecutionTimes(1, 2, 3, 4)
    statistics.record_success(2, 0, times)
    statistics.record_success(3, 0, times)
    statistics.record_execution(5, times)
    entry = statistics.to_dict("m", 1)
    assert (entry["inference_count"], entry["execution_count"]) == (5, 1)
    assert entry["inference_stats"]["success"]["count"] == 2
    assert [batch["batch_size"] for batch in entry["batch_stats"]] == [5]


def test_requests_counted_together_are_counted_as_one_by_one() -> None:
    sizes, arrivals, times = (2, 3), (0, 5), ExecutionTimes(10, 20, 30, 40)
    together, singly = ModelStatistics(), ModelStatistics()
    together.record_together(6, 5, arrivals, times)  # One inference is a placeholder's.
    for size, arrival_ns in zip(sizes, arrivals, strict=True):
        singly.record_success(size, arrival_ns, times)
    singly.record_execution(6, times)
    entries = [statistics.to_dict("m", 1) for statistics in (together, singly)]
    for entry in entries:
        assert entry.pop("last_inference") > 0
    assert entries[0] == entries[1]


def test_failures_are_counted_by_reason_and_beside_the_successes() -> None:
    statistics = ModelStatistics()
    statistics.record_failure(10, 30, FailureReason.CANCELED)
    assert statistics.to_dict("m", 1)["inference_stats"]["fail"] == {"count": 1, "ns": 20}
    assert statistics.snapshot().failures == {"REJECTED": 0, "CANCELED": 1, "BACKEND": 0, "OTHER": 0}
    assert statistics.snapshot().success == 0


def test_a_cache_hit_is_a_success_without_computing() -> None:
    statistics = ModelStatistics()
    statistics.record_cache_hit(arrival_ns=0, lookup_ns=7, end_ns=9)
    stats = statistics.to_dict("m", 1)["inference_stats"]
    assert stats["success"] == {"count": 1, "ns": 9}
    assert stats["cache_hit"] == {"count": 1, "ns": 7}
    assert stats["compute_infer"]["count"] == 0


def test_a_cache_miss_adds_its_time_to_the_request() -> None:
    statistics = ModelStatistics()
    statistics.record(1, 0, ExecutionTimes(0, 0, 10, 10))
    statistics.record_cache_miss(5)
    stats = statistics.to_dict("m", 1)["inference_stats"]
    assert stats["success"] == {"count": 1, "ns": 15}
    assert stats["cache_miss"] == {"count": 1, "ns": 5}


def test_responses_of_decoupled_models_are_counted_by_number() -> None:
    statistics = ModelStatistics()
    statistics.record_response(0, 0, 10, "success")
    statistics.record_response(0, 0, 20, "success")
    statistics.record_response(1, 0, 5, "empty_response")
    stats = statistics.to_dict("m", 1)["response_stats"]
    assert list(stats) == ["0", "1"]
    assert stats["0"]["success"] == {"count": 2, "ns": 30}
    assert stats["1"]["empty_response"] == {"count": 1, "ns": 5}
    assert set(stats["0"]) == {"compute_infer", "compute_output", "success", "fail", "empty_response", "cancel"}


def test_many_requests_of_several_sizes_add_up_whenever_they_are_asked_for() -> None:
    statistics = ModelStatistics()
    for number in range(200):
        times = ExecutionTimes(number + 1, number + 3, number + 6, number + 10)
        statistics.record(1 + number % 2, number, times)
        if number % 70 == 0:
            assert statistics.snapshot().success == number + 1
    entry = statistics.to_dict("m", 1)
    assert (entry["inference_count"], entry["execution_count"]) == (300, 200)
    assert entry["inference_stats"]["success"] == {"count": 200, "ns": 2000}
    assert entry["inference_stats"]["compute_infer"] == {"count": 200, "ns": 600}
    assert [(batch["batch_size"], batch["compute_output"]) for batch in entry["batch_stats"]] == [
        (1, {"count": 100, "ns": 400}),
        (2, {"count": 100, "ns": 400}),
    ]
