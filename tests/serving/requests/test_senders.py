import gc
import logging
import time
import weakref
from typing import Any

import numpy as np
import pytest

from repoagent.errors import CancelledError, InternalError
from repoagent.serving.measuring.statistics import ModelStatistics
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse
from repoagent.serving.requests.senders import CollectingSender, RecordingSender, TrackedSender, answer_error
from repoagent.serving.requests.tensor import Tensor


def response(**fields: Any) -> InferResponse:
    return InferResponse("m", "1", **fields)


def test_an_error_does_not_hold_the_memory_of_the_request_that_it_answers(new_sender: Any) -> None:
    """Without the garbage collector: it may come by long after a thousand large requests."""
    kept = new_sender()

    def fail(request: InferRequest) -> None:
        try:
            try:
                raise ValueError("no")
            except ValueError as error:
                raise InternalError("no") from error
        except InternalError as error:
            answer_error(request, error)

    array = np.zeros(4)
    memory = weakref.ref(array)
    request = InferRequest(Asked("m", {"x": Tensor.of(array)}), kept)
    gc.disable()
    try:
        fail(request)
        del request, array
        assert memory() is None
    finally:
        gc.enable()
    assert kept.sent.qsize() == 1


def test_a_tracked_request_is_done_at_its_final_response_and_gets_its_own_sender_back(new_sender: Any) -> None:
    own, done = new_sender(), []
    request = InferRequest(Asked("m", {}), own)
    TrackedSender(request, lambda: done.append(True))
    request.send(response(), False)
    assert (done, own.sent.qsize()) == ([], 1)
    request.send(None, True)
    assert (done, own.sent.qsize()) == ([True], 2)
    assert request.redirect(own) is own


def test_an_answer_after_the_final_one_is_dropped_and_logged(new_sender: Any, caplog: pytest.LogCaptureFixture) -> None:
    own, done = new_sender(), []
    tracked = TrackedSender(InferRequest(Asked("m", {}), own), lambda: done.append(True))
    tracked.send(response(), True)
    tracked.send(response(), True)
    assert own.sent.qsize() == 1
    assert done == [True]
    assert "after its final response" in caplog.text


def test_a_sender_that_raises_does_not_keep_the_request_open(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def send(self, response: InferResponse | None, final: bool) -> None:
            raise RuntimeError("the connection is gone")

    done: list[bool] = []
    with caplog.at_level(logging.ERROR):
        TrackedSender(InferRequest(Asked("m", {}), Broken()), lambda: done.append(True)).send(response(), True)
    assert done == [True]
    assert "the connection is gone" in caplog.text


def test_a_collector_returns_the_one_answer() -> None:
    collector = CollectingSender()
    collector.send(response(id="a"), False)
    collector.send(None, True)
    assert collector.result("m").id == "a"


def test_a_collector_raises_the_error_of_the_answer() -> None:
    collector = CollectingSender()
    collector.send(response(error=CancelledError("gone")), True)
    with pytest.raises(CancelledError, match="gone"):
        collector.result("m")


@pytest.mark.parametrize("count", [0, 2])
def test_a_collector_refuses_any_other_number_of_answers(count: int) -> None:
    collector = CollectingSender()
    for _ in range(count):
        collector.send(response(), False)
    collector.send(None, True)
    with pytest.raises(InternalError, match=f"sent {count} responses"):
        collector.result("m")


def test_a_recorder_counts_every_answer_of_a_decoupled_model(new_sender: Any) -> None:
    own, statistics = new_sender(), ModelStatistics()
    request = InferRequest(Asked("m", {}), own)
    recorder = RecordingSender(request, statistics, batch_size=1, started_ns=0, decoupled=True)
    recorder.send(response(), False)
    recorder.send(response(), False)
    recorder.send(None, True)
    entry = statistics.to_dict("m", 1)
    assert entry["inference_stats"]["success"]["count"] == 1
    assert list(entry["response_stats"]) == ["0", "1", "2"]
    assert own.sent.qsize() == 3
    assert request.redirect(own) is own


def test_a_model_that_is_not_decoupled_has_one_answer(new_sender: Any, caplog: pytest.LogCaptureFixture) -> None:
    statistics, own = ModelStatistics(), new_sender()
    request = InferRequest(Asked("m", {}), own)
    recorder = RecordingSender(request, statistics, batch_size=1, started_ns=0, decoupled=False)
    for name in ("first", "second", "third"):
        recorder.send(response(id=name), False)
    recorder.send(response(id="last"), True)
    (first, first_final), (last, last_final) = (own.sent.get(timeout=60) for _ in range(2))
    assert (first.id, first_final, last, last_final) == ("first", False, None, True)
    assert own.sent.empty()
    assert caplog.text.count("is not decoupled and answers again") == 3
    assert statistics.to_dict("m", 1)["inference_stats"]["success"]["count"] == 1


def test_a_response_may_say_from_when_on_its_outputs_were_made(new_sender: Any) -> None:
    statistics = ModelStatistics()
    request = InferRequest(Asked("m", {}), new_sender())
    started = time.monotonic_ns() - 100
    recorder = RecordingSender(request, statistics, batch_size=1, started_ns=started, decoupled=True)
    recorder.send(response(output_start_ns=started + 40), True)
    entry = statistics.to_dict("m", 1)["response_stats"]["0"]
    assert entry["compute_infer"]["ns"] == 40
    assert entry["compute_output"]["ns"] >= 60


@pytest.mark.parametrize(("error", "reason"), [(CancelledError("x"), "CANCELED"), (InternalError("x"), "BACKEND")])
def test_a_recorder_counts_failures(new_sender: Any, error: Any, reason: str) -> None:
    statistics = ModelStatistics()
    request = InferRequest(Asked("m", {}), new_sender())
    RecordingSender(request, statistics, batch_size=1, started_ns=0, decoupled=False).send(response(error=error), True)
    assert statistics.snapshot().failures[reason] == 1


def test_an_error_is_the_final_answer(new_sender: Any) -> None:
    sender = new_sender()
    answer_error(InferRequest(Asked("m", {}, id="r"), sender), InternalError("x"), "2")
    answer = sender.final()
    assert (answer.id, answer.model_version, str(answer.error)) == ("r", "2", "x")
    answer_error(InferRequest(Asked("m", {})), InternalError("nobody listens"))


def test_errors_that_are_the_reasons_of_each_other_are_answered() -> None:
    original, made = ValueError("from a model"), InternalError("made of it")
    original.__context__, made.__cause__ = made, original
    sender = CollectingSender()
    answer_error(InferRequest(Asked("m", {}, id="r"), sender), made)
    with pytest.raises(InternalError, match="made of it"):
        sender.result("m")
