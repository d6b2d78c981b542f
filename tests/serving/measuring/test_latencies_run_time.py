from repoagent.serving.measuring.latencies import RunTime, common_run_time, unpredictable

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
