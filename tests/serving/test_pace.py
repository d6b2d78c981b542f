from repoagent.serving.pace import Pace, common_pace, unpredictable

MS = 1_000_000


def paced(*durations_ns: int) -> Pace:
    """The pace of a model that was quick for long and then took that long."""
    pace = Pace()
    for duration in [1000] * 200 + list(durations_ns):
        pace.note(duration)
    return pace


def test_nothing_is_promised_before_the_first_run() -> None:
    pace = Pace()
    assert [pace.quick, pace.brief, pace.short] == [False, False, False]


def test_a_model_whose_runs_are_short_is_quick_soon() -> None:
    pace = Pace()
    pace.note(1000)
    assert pace.quick
    for _ in range(5):
        pace.note(1000)
    assert [pace.brief, pace.short] == [True, True]


def test_a_run_that_was_interrupted_is_forgiven() -> None:
    assert paced(4 * MS).quick


def test_a_slow_run_is_held_against_the_model_and_paid_back() -> None:
    pace = paced(10 * MS)
    assert not pace.quick
    assert pace.brief
    for _ in range(100):
        pace.note(1000)
    assert pace.quick


def test_a_model_that_is_slow_on_average_is_never_quick() -> None:
    pace = paced(1000 * MS)
    seen = []
    for _ in range(20):
        for duration in [1000] * 99 + [1000 * MS]:
            pace.note(duration)
            seen.append(pace.quick)
    assert not any(seen)


def test_a_model_may_change_its_ways() -> None:
    pace = paced(*[1000 * MS] * 1000)
    assert not pace.short
    for _ in range(20_000):
        pace.note(1000)
    assert [pace.quick, pace.brief] == [True, True]


def test_waiting_for_a_processor_is_not_held_against_a_model_that_only_computes() -> None:
    pace = paced(10 * MS)
    for _ in range(100):
        pace.note_computing(5 * MS, 1000)
    assert [pace.quick, pace.brief] == [True, True]


def test_computing_for_long_is() -> None:
    pace = paced()
    for _ in range(300):
        pace.note_computing(MS, MS)
    assert [pace.quick, pace.brief, pace.short] == [False, False, True]


def test_a_wait_of_unknown_length_is_held_against_it_for_a_while() -> None:
    pace = paced()
    pace.note_computing(60_000 * MS)
    assert not pace.quick
    for _ in range(1100):
        pace.note_computing(1000, 1000)
    assert pace.quick


def test_instances_that_share_a_pace_have_it_in_common() -> None:
    pace = paced()
    assert common_pace([pace, pace]) is pace


def test_instances_of_different_paces_promise_nothing() -> None:
    for paces in ([paced(), paced()], [paced(), unpredictable()], []):
        common = common_pace(paces)
        assert [common.quick, common.brief, common.short] == [False, False, False]
