"""Requests that a process is given at once, in a whole core: what each of them is still promised."""

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repoagent.errors import CancelledError, InternalError, UnavailableError
from repoagent.serving.assembly import RateLimitMode
from repoagent.serving.core import CoreOptions, ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor
from repoagent.serving.scheduling.ahead import AheadScheduler
from tests.serving.backends.python.process.conftest import CONFIG, MODEL, Answers, Serving

UNHEALTHY = r"Stub process 'm_0' is not healthy\."

pytestmark = pytest.mark.slow


def test_what_waits_is_handed_over_together_and_answered_one_by_one(serve_steadily: Callable[..., Serving]) -> None:
    serving = serve_steadily()
    before = serving.messages()
    values = [10.0 + number for number in range(8)]
    _, answers = serving.together(*values)
    assert [answer.value for answer in answers] == values
    assert serving.messages() - before == 1


def test_every_execution_is_counted_by_itself(serve: Callable[..., Serving]) -> None:
    serving = serve()
    before = serving.statistics()
    _, answers = serving.together(*[10.0] * 6, 4.0, 10.0)
    for answer in answers:
        assert answer.value
    after = serving.statistics()
    assert after["execution_count"] - before["execution_count"] == 8
    assert after["inference_count"] - before["inference_count"] == 8
    assert [entry["batch_size"] for entry in after["batch_stats"]] == [1]
    took = [
        after["inference_stats"][part]["ns"] - before["inference_stats"][part]["ns"]
        for part in ("success", "queue", "compute_input", "compute_infer", "compute_output")
    ]
    assert took[0] == sum(took[1:])
    # The last one waited for the one that slept: that is no execution of its own.
    executed = sum(entry["compute_infer"]["ns"] for entry in after["batch_stats"])
    assert executed - sum(entry["compute_infer"]["ns"] for entry in before["batch_stats"]) >= 4_000_000
    assert took[1] > 0


def test_no_more_is_handed_over_than_the_operator_allows(serve: Callable[..., Serving]) -> None:
    serving = serve(requests_ahead="8")
    assert serving.instances[0].ahead == 8


def test_large_inputs_are_not_sent_ahead(serve: Callable[..., Serving]) -> None:
    serving = serve()
    before = serving.messages()
    with serving.held():
        senders = [Answers() for _ in range(4)]
        for sender in senders:
            array = np.full(1 << 17, 10.0, np.float32)
            serving.core.submit(InferRequest(Asked("m", {"x": Tensor.of(array)}), sender))
    assert [sender.value for sender in senders] == [10.0] * 4
    assert serving.messages() - before == 4


def test_an_error_is_that_of_one_request(serve: Callable[..., Serving]) -> None:
    _, answers = serve().together(10.0, 3.0, 11.0)
    assert answers[0].value == 10.0
    with pytest.raises(InternalError, match="no luck"):
        _ = answers[1].value
    assert answers[2].value == 11.0


def test_a_request_that_cannot_be_written_fails_alone(serve: Callable[..., Serving]) -> None:
    serving = serve()
    with serving.held():
        _, good = serving.submit(10.0)
        _, bad = serving.submit(11.0, parameters={"thing": object()})
        _, last = serving.submit(12.0)
    assert good.value == 10.0
    with pytest.raises(InternalError, match="parameter 'thing' has a value of type object"):
        _ = bad.value
    assert last.value == 12.0


def test_a_request_that_was_sent_ahead_can_be_cancelled(serve: Callable[..., Serving]) -> None:
    serving = serve()
    requests, answers = serving.together(1.0, 10.0, 11.0)
    requests[1].cancel()
    with pytest.raises(CancelledError):  # While the first one is still executed.
        _ = answers[1].value
    serving.let_go()
    assert [answers[0].value, answers[2].value] == [1.0, 11.0]
    failed = serving.statistics()["inference_stats"]["fail"]["count"]
    assert failed == 1


def test_a_request_that_was_sent_ahead_can_wait_too_long(serve: Callable[..., Serving]) -> None:
    serving = serve()
    with serving.held():
        _, first = serving.submit(1.0)
        _, hurried = serving.submit(10.0, timeout_us=1_000_000)
        _, patient = serving.submit(11.0)
    with pytest.raises(UnavailableError, match="Request timeout expired"):
        _ = hurried.value
    serving.let_go()
    assert [first.value, patient.value] == [1.0, 11.0]


def test_what_is_cancelled_or_late_before_is_not_sent(serve: Callable[..., Serving]) -> None:
    serving = serve()
    before = serving.statistics()["execution_count"]
    with serving.held():
        _, first = serving.submit(10.0)
        request, cancelled = serving.submit(11.0)
        _, late = serving.submit(12.0, timeout_us=1)
        request.cancel()
        assert cancelled.complete.wait(60)
        assert late.complete.wait(60)
    assert first.value == 10.0
    assert serving.statistics()["execution_count"] - before == 1


def test_what_stands_behind_a_slow_one_goes_to_another_instance(serve: Callable[..., Serving]) -> None:
    serving = serve("instance_group { count: 2 }")
    _, answers = serving.together(1.0, *[10.0] * 6)
    assert [answer.value for answer in answers[1:]] == [10.0] * 6  # While the first one is still executed.
    serving.let_go()
    assert answers[0].value == 1.0


def test_an_answer_does_not_wait_for_a_slow_execution_behind_it(serve: Callable[..., Serving]) -> None:
    serving = serve()
    _, answers = serving.together(10.0, 1.0, 11.0)
    assert answers[0].value == 10.0  # While the second one is still executed.
    serving.let_go()
    assert [answers[1].value, answers[2].value] == [1.0, 11.0]


def test_what_a_crash_takes_with_it_goes_to_the_next_process(serve: Callable[..., Serving]) -> None:
    serving = serve()
    _, answers = serving.together(2.0, 10.0, 11.0, 12.0)
    with pytest.raises(InternalError, match=UNHEALTHY):
        _ = answers[0].value
    assert [answer.value for answer in answers[1:]] == [10.0, 11.0, 12.0]


def test_a_crash_costs_what_had_begun_and_nothing_behind_it(serve: Callable[..., Serving]) -> None:
    serving = serve()
    _, answers = serving.together(10.0, 2.0, 11.0, 2.0, 12.0)
    for answer in (answers[1], answers[3]):
        with pytest.raises(InternalError, match=UNHEALTHY):
            _ = answer.value
    assert answers[0].response.error is None or "is not healthy" in str(answers[0].response.error)
    assert [answers[2].value, answers[4].value] == [11.0, 12.0]


def test_an_unload_waits_for_what_was_handed_over_and_finalizes(serve: Callable[..., Serving]) -> None:
    serving = serve()
    _, answers = serving.together(4.0, 10.0, 11.0)
    serving.core.unload("m")
    assert [answer.value for answer in answers] == [4.0, 10.0, 11.0]
    assert serving.finalized.exists()


def test_callers_that_wait_are_served_together_as_well(serve_steadily: Callable[..., Serving]) -> None:
    serving = serve_steadily()
    before = serving.messages()
    seen: list[float] = []

    def call(value: float) -> None:
        response = serving.core.infer(serving.request(value))
        seen.append(float(response.outputs["y"].array[0]))

    threads = [threading.Thread(target=call, args=(10.0 + number,)) for number in range(8)]
    with serving.held():
        for thread in threads:
            thread.start()
        while serving.scheduler.waiting < len(threads):
            pass
    for thread in threads:
        thread.join(60)
    assert sorted(seen) == [10.0 + number for number in range(8)]
    assert serving.messages() - before < len(threads)


def test_a_decoupled_model_gets_one_request_at_a_time(run_in_process_of_its_own: Any) -> None:
    body = "class TritonPythonModel:\n  def execute(self, requests):\n    pass\n"
    config = 'name: "m" backend: "python" model_transaction_policy { decoupled: true }'
    model = run_in_process_of_its_own(body, config)
    for _ in range(50):
        model.ask([0.0])
    assert model.instance.ahead == 1


@pytest.mark.parametrize(
    ("more", "limited"),
    [
        ("dynamic_batching { priority_levels: 2 default_priority_level: 1 } max_batch_size: 4", False),
        ("sequence_batching { }", False),
        ('instance_group { rate_limiter { resources { name: "r" count: 1 } } }', True),
    ],
    ids=["priorities", "sequences", "resources"],
)
def test_nothing_is_sent_ahead_where_the_queue_decides_more(tmp_path: Path, more: str, limited: bool) -> None:
    directory = tmp_path / "models" / "m" / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(MODEL.format(pipe="", finalized=str(tmp_path / "finalized")))
    (directory.parent / "config.pbtxt").write_text(CONFIG.format(more=more))
    mode = RateLimitMode.EXECUTION_COUNT if limited else RateLimitMode.OFF
    gc.collect()
    options = CoreOptions(repositories=(str(tmp_path / "models"),), repoagent_directory=None, rate_limit=mode)
    with ServingCore(options) as core:
        assert core.model_ready("m")
        assert [entry for entry in gc.get_objects() if isinstance(entry, AheadScheduler) and not entry._closed] == []
