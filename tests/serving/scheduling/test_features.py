"""Every feature of the schedulers, with and without it: a test that passes either way would show nothing.

A feature is a configuration with it, the same configuration without it, and a scenario. The scenario must pass with the
first and fail with the second.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from repoagent.serving.scheduling.response_cache import ResponseCache

Scenario = Callable[[Any], None]


@dataclass(frozen=True)
class Feature:
    name: str
    on: str
    off: str
    scenario: Scenario
    instances: int = 1


def waiting_requests_are_executed_together(bench: Any) -> None:
    bench.plug()
    answers = [bench.submit(value) for value in (1, 2, 3)]
    bench.unplug()
    assert [answer.value() for answer in answers] == [2, 4, 6]
    assert bench.batches == [[1, 2, 3]]


def no_batch_is_larger_than_two(bench: Any) -> None:
    bench.plug()
    answers = [bench.submit(value) for value in (1, 2, 3, 4)]
    bench.unplug()
    assert [answer.value() for answer in answers] == [2, 4, 6, 8]
    assert bench.batches == [[1, 2], [3, 4]]


def batches_of_the_preferred_size_go_first(bench: Any) -> None:
    bench.plug()
    answers = [bench.submit(value) for value in (1, 2, 3, 4, 5)]
    bench.unplug()
    assert [answer.value() for answer in answers] == [2, 4, 6, 8, 10]
    assert bench.batches == [[1, 2], [3, 4], [5]]


def a_request_waits_for_company(bench: Any) -> None:
    now = bench.clock.now_ns()
    first = bench.submit(1)
    assert bench.event() == ("sleep", now + 1_000_000)
    second = bench.submit(2)
    bench.advance_ms(1)
    assert [first.value(), second.value()] == [2, 4]
    assert bench.batches == [[1, 2]]


def answers_keep_the_order_of_the_requests(bench: Any) -> None:
    bench.plug(1)
    held = next(runner for runner in bench.runners if runner.inputs)
    other = next(runner for runner in bench.runners if not runner.inputs)
    other.free.set()
    bench.submit(2)
    bench.wait_for_run([2])
    bench.submit(3)
    bench.wait_for_run([3])  # By the instance that is free, which has therefore answered request 2.
    held.free.set()
    assert bench.answered(3) == [1, 2, 3]


def urgent_requests_overtake(bench: Any) -> None:
    bench.plug()
    late, early = bench.submit(1, priority=2), bench.submit(2, priority=1)
    bench.unplug()
    assert [late.value(), early.value()] == [2, 4]
    assert bench.batches == [[2], [1]]


def a_request_without_priority_is_urgent(bench: Any) -> None:
    bench.plug()
    late, early = bench.submit(1, priority=2), bench.submit(2)
    bench.unplug()
    assert [late.value(), early.value()] == [2, 4]
    assert bench.batches == [[2], [1]]


def the_second_that_waits_is_refused(bench: Any) -> None:
    bench.plug()
    first, second = bench.submit(1), bench.submit(2, id="two")
    assert second.arrived
    assert str(second.error()) == "[request id: two] Exceeds maximum queue size"
    bench.unplug()
    assert first.value() == 2


def a_request_that_waited_too_long_is_refused(bench: Any) -> None:
    bench.plug()
    late = bench.submit(1)
    bench.advance_ms(2)
    bench.unplug()
    assert str(late.error()) == "Request timeout expired"


def a_request_that_waited_too_long_comes_last(bench: Any) -> None:
    bench.plug()
    late = bench.submit(1)
    bench.advance_ms(2)
    fresh = bench.submit(2)
    bench.unplug()
    assert [late.value(), fresh.value()] == [2, 4]
    assert bench.batches == [[2], [1]]


def a_request_may_shorten_its_time(bench: Any) -> None:
    bench.plug()
    hasty, patient = bench.submit(1, timeout_us=1000), bench.submit(2)
    bench.advance_ms(2)
    bench.unplug()
    assert str(hasty.error()) == "Request timeout expired"
    assert patient.value() == 4


def only_the_urgent_queue_is_short(bench: Any) -> None:
    bench.plug()
    urgent = [bench.submit(value, priority=1) for value in (1, 2)]
    others = [bench.submit(value, priority=2) for value in (3, 4)]
    assert urgent[1].arrived
    assert "Exceeds maximum queue size" in str(urgent[1].error())
    bench.unplug()
    assert [urgent[0].value(), *(answer.value() for answer in others)] == [2, 6, 8]


def in_sequence(bench: Any, value: float, sequence: int | str, flags: str = "") -> Any:
    return bench.submit(value, correlation_id=sequence, sequence_start="S" in flags, sequence_end="E" in flags)


def a_sequence_keeps_its_row(bench: Any) -> None:
    for sequence in (1, 2):
        in_sequence(bench, sequence, sequence, "S").value()
    bench.batches.clear()
    assert in_sequence(bench, 20, 2).value() == 40
    assert bench.batches == [[0, 20]]


def a_batch_has_only_what_waits(bench: Any) -> None:
    for sequence in (1, 2):
        in_sequence(bench, sequence, sequence, "S").value()
    bench.batches.clear()
    assert in_sequence(bench, 20, 2).value() == 40
    assert bench.batches == [[20]]


def a_sequence_waits_for_others(bench: Any) -> None:
    now = bench.clock.now_ns()
    first = in_sequence(bench, 1, 1, "S")
    assert bench.event() == ("sleep", now + 1_000_000)
    second = in_sequence(bench, 2, 2, "S")
    assert [first.value(), second.value()] == [2, 4]
    assert bench.batches == [[1, 2]]


def a_sequence_waits_for_the_whole_delay(bench: Any) -> None:
    now = bench.clock.now_ns()
    first = in_sequence(bench, 1, 1, "S")
    assert bench.event() == ("sleep", now + 1_000_000)
    second = in_sequence(bench, 2, 2, "S")
    bench.advance_ms(1)
    assert [first.value(), second.value()] == [2, 4]
    assert bench.batches == [[1, 2]]


def two_sequences_do_not_wait(bench: Any) -> None:
    now = bench.clock.now_ns()
    first = in_sequence(bench, 1, 1, "S")
    assert bench.event() == ("sleep", now + 1_000_000)
    others = [in_sequence(bench, sequence, sequence, "S") for sequence in (2, 3, 4)]
    assert [answer.value() for answer in (first, *others)] == [2, 4, 6, 8]
    assert bench.batches == [[1, 2], [3, 4]]


def only_one_sequence_at_a_time(bench: Any) -> None:
    in_sequence(bench, 1, 1, "S").value()
    other, last = in_sequence(bench, 2, 2, "S"), in_sequence(bench, 10, 1, "E")
    assert [other.value(), last.value()] == [4, 20]
    assert bench.batches == [[1], [10], [2]]


def an_idle_sequence_is_over(bench: Any) -> None:
    in_sequence(bench, 1, 1, "S").value()
    bench.advance_ms(2)
    assert "must specify the START flag" in str(in_sequence(bench, 2, 1).error())


def the_model_is_told(name: str, values: list[Any]) -> Scenario:
    def scenario(bench: Any) -> None:
        for flags in ("S", "", "E"):
            in_sequence(bench, 1, 7, flags).value()
        told = [inputs.get(name) for inputs in bench.runners[0].inputs]
        assert all(tensor is not None for tensor in told)
        assert [tensor.array.item() for tensor in told if tensor is not None] == values

    return scenario


def the_model_is_told_which_rows_are_ready(bench: Any) -> None:
    for sequence in (1, 2):
        in_sequence(bench, sequence, sequence, "S").value()
    ready = bench.runners[0].inputs[1].get("READY")
    assert ready is not None
    assert ready.array.tolist() == [[0], [1]]


def equal_requests_are_executed_once(bench: Any) -> None:
    assert [bench.submit(1).value() for _ in range(2)] == [2, 2]
    assert bench.batches == [[1]]


def dynamic(settings: str, max_batch_size: int = 8) -> str:
    return f"max_batch_size: {max_batch_size}\ndynamic_batching {{ {settings} }}"


LEVELS = "priority_levels: 2 default_priority_level: 2"
TIMEOUT = "default_timeout_microseconds: 1000"


def sequences(settings: str = "", max_batch_size: int = 4) -> str:
    return f"max_batch_size: {max_batch_size}\nsequence_batching {{ {settings} }}"


def control(name: str, values: str) -> str:
    return sequences(f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{name} {values} }} }}')


def oldest(settings: str, candidates: int = 4) -> str:
    return sequences(f"oldest {{ max_candidate_sequences: {candidates} {settings} }}")


DELAY = "max_queue_delay_microseconds: 1000"
FLAG = "int32_false_true: [ 0, 1 ]"

FEATURES = [
    Feature("dynamic_batching", dynamic(""), "max_batch_size: 8", waiting_requests_are_executed_together),
    Feature("max_batch_size", dynamic("", 2), dynamic("", 8), no_batch_is_larger_than_two),
    Feature(
        "preferred_batch_size",
        dynamic("preferred_batch_size: 2"),
        dynamic(""),
        batches_of_the_preferred_size_go_first,
    ),
    Feature(
        "max_queue_delay_microseconds",
        dynamic("max_queue_delay_microseconds: 1000"),
        dynamic(""),
        a_request_waits_for_company,
    ),
    Feature(
        "preserve_ordering",
        dynamic("preserve_ordering: true"),
        dynamic(""),
        answers_keep_the_order_of_the_requests,
        instances=2,
    ),
    Feature("priority_levels", dynamic(LEVELS, 1), dynamic("", 1), urgent_requests_overtake),
    Feature(
        "default_priority_level",
        dynamic("priority_levels: 2 default_priority_level: 1", 1),
        dynamic(LEVELS, 1),
        a_request_without_priority_is_urgent,
    ),
    Feature(
        "max_queue_size",
        dynamic("default_queue_policy { max_queue_size: 1 }"),
        dynamic(""),
        the_second_that_waits_is_refused,
    ),
    Feature(
        "default_timeout_microseconds",
        dynamic(f"default_queue_policy {{ {TIMEOUT} }}"),
        dynamic(""),
        a_request_that_waited_too_long_is_refused,
    ),
    Feature(
        "timeout_action",
        dynamic(f"default_queue_policy {{ {TIMEOUT} timeout_action: DELAY }}", 1),
        dynamic(f"default_queue_policy {{ {TIMEOUT} }}", 1),
        a_request_that_waited_too_long_comes_last,
    ),
    Feature(
        "allow_timeout_override",
        dynamic("default_queue_policy { default_timeout_microseconds: 5000 allow_timeout_override: true }"),
        dynamic("default_queue_policy { default_timeout_microseconds: 5000 }"),
        a_request_may_shorten_its_time,
    ),
    Feature(
        "priority_queue_policy",
        dynamic(f"{LEVELS} priority_queue_policy {{ key: 1 value {{ max_queue_size: 1 }} }}"),
        dynamic(LEVELS),
        only_the_urgent_queue_is_short,
    ),
    Feature("sequence_batching.direct", sequences("direct { }"), "max_batch_size: 4", a_sequence_keeps_its_row),
    Feature(
        "sequence_batching.direct.max_queue_delay_microseconds",
        sequences(f"direct {{ {DELAY} minimum_slot_utilization: 1 }}"),
        sequences("direct { minimum_slot_utilization: 1 }"),
        a_sequence_waits_for_the_whole_delay,
    ),
    Feature(
        "sequence_batching.direct.minimum_slot_utilization",
        sequences(f"direct {{ {DELAY} minimum_slot_utilization: 0.5 }}"),
        sequences(f"direct {{ {DELAY} }}"),
        a_sequence_waits_for_others,
    ),
    Feature("sequence_batching.oldest", oldest(""), sequences(), a_batch_has_only_what_waits),
    Feature(
        "sequence_batching.oldest.max_candidate_sequences",
        oldest("", candidates=1),
        oldest("", candidates=2),
        only_one_sequence_at_a_time,
    ),
    Feature(
        "sequence_batching.oldest.max_queue_delay_microseconds",
        oldest(DELAY),
        oldest(""),
        a_sequence_waits_for_the_whole_delay,
    ),
    Feature(
        "sequence_batching.oldest.preferred_batch_size",
        oldest(f"{DELAY} preferred_batch_size: 2"),
        oldest(DELAY),
        two_sequences_do_not_wait,
    ),
    Feature(
        "sequence_batching.max_sequence_idle_microseconds",
        sequences("max_sequence_idle_microseconds: 1000"),
        sequences(),
        an_idle_sequence_is_over,
    ),
    Feature(
        "response_cache",
        "response_cache { enable: true }",
        "response_cache { enable: false }",
        equal_requests_are_executed_once,
    ),
    Feature("CONTROL_SEQUENCE_START", control("START", FLAG), sequences(), the_model_is_told("START", [1, 0, 0])),
    Feature("CONTROL_SEQUENCE_END", control("END", FLAG), sequences(), the_model_is_told("END", [0, 0, 1])),
    Feature("CONTROL_SEQUENCE_READY", control("READY", FLAG), sequences(), the_model_is_told_which_rows_are_ready),
    Feature(
        "CONTROL_SEQUENCE_CORRID",
        control("CORRID", "data_type: TYPE_UINT64"),
        sequences(),
        the_model_is_told("CORRID", [7, 7, 7]),
    ),
]


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_the_feature_does_what_it_says(feature: Feature, bench: Any) -> None:
    feature.scenario(bench(feature.on, instances=feature.instances, cache=ResponseCache(10_000)))


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_without_the_feature_its_scenario_fails(feature: Feature, bench: Any) -> None:
    with pytest.raises(AssertionError):
        feature.scenario(bench(feature.off, instances=feature.instances, cache=ResponseCache(10_000)))
