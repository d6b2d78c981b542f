import threading
from typing import Any

import pytest

from repoagent.errors import CancelledError, InternalError
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse
from repoagent.serving.scheduling.response_cache import ResponseCache
from repoagent.serving.scheduling.wrappers import OrderKeeper


class Sent:
    def __init__(self, log: list[str], name: str) -> None:
        self.log = log
        self.name = name

    def send(self, response: InferResponse | None, final: bool) -> None:
        self.log.append(f"{self.name}{'!' if final else ''}")


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def row(log: list[str]) -> Any:
    keeper = OrderKeeper()
    requests = []
    for name in "abc":
        requests.append(InferRequest(Asked("m", {}), Sent(log, name)))
        keeper.enroll(requests[-1])
    return requests


def test_answers_wait_for_those_to_the_requests_before(row: Any, log: list[str]) -> None:
    row[2].send(None, True)
    row[1].send(None, True)
    assert log == []
    row[0].send(None, True)
    assert log == ["a!", "b!", "c!"]


def test_the_answers_to_the_first_request_go_out_as_they_come(row: Any, log: list[str]) -> None:
    row[0].send(None, False)
    row[1].send(None, False)
    assert log == ["a"]
    row[0].send(None, True)
    assert log == ["a", "a!", "b"]


def test_the_request_has_its_own_sender_back_at_the_end(log: list[str]) -> None:
    own = Sent(log, "a")
    request = InferRequest(Asked("m", {}), own)
    OrderKeeper().enroll(request)
    request.send(None, True)
    assert request.redirect(own) is own


def test_many_threads_answering_at_once_keep_the_order(log: list[str]) -> None:
    keeper = OrderKeeper()
    requests = [InferRequest(Asked("m", {}), Sent(log, str(number))) for number in range(200)]
    for request in requests:
        keeper.enroll(request)
    barrier = threading.Barrier(4)

    def answer(offset: int) -> None:
        barrier.wait()
        for request in requests[offset::4]:
            request.send(None, True)

    threads = [threading.Thread(target=answer, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log == [f"{number}!" for number in range(200)]


def test_a_caller_that_waits_is_answered_in_its_turn(bench: Any) -> None:
    subject = bench("max_batch_size: 8 dynamic_batching { preserve_ordering: true }")
    assert subject.scheduler.infer(subject.request(2)).outputs["y"].array.tolist() == [[4]]
    assert subject.scheduler.waiting == 0


CACHED = "max_batch_size: 8 dynamic_batching { } response_cache { enable: true }"


@pytest.fixture
def cache() -> ResponseCache:
    return ResponseCache(100_000)


def test_the_second_of_two_equal_requests_is_answered_from_the_cache(bench: Any, cache: ResponseCache) -> None:
    subject = bench(CACHED, cache=cache)
    assert [subject.submit(1, id=name).response().id for name in "ab"] == ["a", "b"]
    assert subject.scheduler.infer(subject.request(1)).outputs["y"].array.tolist() == [[2]]
    assert subject.submit(2).value() == 4
    assert subject.scheduler.infer(subject.request(2)).outputs["y"].array.tolist() == [[4]]
    assert subject.batches == [[1], [2]]


def test_hits_and_misses_are_counted_apart_from_inferences(bench: Any, cache: ResponseCache) -> None:
    subject = bench(CACHED, cache=cache)
    for value in (1, 1, 2, 1):
        subject.scheduler.infer(subject.request(value))
    entry = subject.statistics.to_dict("m", 1)
    assert (entry["inference_count"], entry["execution_count"]) == (2, 2)
    stats = entry["inference_stats"]
    assert [stats[name]["count"] for name in ("success", "cache_hit", "cache_miss", "compute_infer")] == [4, 2, 2, 2]


def test_errors_are_not_kept(bench: Any, cache: ResponseCache) -> None:
    subject = bench(CACHED, cache=cache)
    instance = subject.scheduler._inner.instances[0]
    run, instance._run = instance._run, lambda *_: 1 / 0
    assert isinstance(subject.submit(1).error(), InternalError)
    with pytest.raises(InternalError):
        subject.scheduler.infer(subject.request(1))
    instance._run = run
    assert subject.submit(1).value() == 2
    assert subject.statistics.snapshot().cache_misses == 1


def test_a_cancelled_request_is_not_answered_from_the_cache(bench: Any, cache: ResponseCache) -> None:
    subject = bench(CACHED, cache=cache)
    subject.submit(1).value()
    request = subject.request(1)
    request.cancel()
    with pytest.raises(CancelledError):
        subject.scheduler.infer(request)


def test_an_answer_that_was_part_of_a_batch_is_kept_alone(bench: Any, cache: ResponseCache) -> None:
    subject = bench(CACHED, cache=cache)
    subject.plug()
    answers = [subject.submit(1), subject.submit(2, rows=3)]
    subject.unplug()
    assert [answer.value() for answer in answers] == [2, 4]
    assert subject.batches == [[1, 2, 2, 2]]
    assert subject.submit(2, rows=3).response().outputs["y"].array.tolist() == [[4]] * 3
    assert cache.used <= 3 * (512 + 12)


def test_a_version_that_is_closed_leaves_nothing_in_the_cache(bench: Any, cache: ResponseCache) -> None:
    subject = bench(CACHED, cache=cache)
    subject.submit(1).value()
    assert len(cache) == 1
    subject.scheduler.close()
    assert len(cache) == 0


def test_two_loads_of_a_model_do_not_share_answers(bench: Any, cache: ResponseCache) -> None:
    first, second = bench(CACHED, cache=cache), bench(CACHED, cache=cache)
    first.submit(1).value()
    second.submit(1).value()
    assert (first.batches, second.batches) == ([[1]], [[1]])


def test_the_request_has_its_own_sender_back(bench: Any, cache: ResponseCache) -> None:
    subject = bench(CACHED, cache=cache)
    request = subject.request(1)
    answers = subject.submit_request(request, 1)
    answers.value()
    assert request.redirect(answers) is answers


def test_hits_wait_for_their_turn_if_the_order_is_to_be_kept(bench: Any, cache: ResponseCache) -> None:
    subject = bench(CACHED.replace("batching { }", "batching { preserve_ordering: true }"), cache=cache)
    subject.submit(1).value()
    assert subject.answered(1) == [1]
    subject.plug()
    hit = subject.submit(1)
    assert not hit.arrived
    subject.unplug()
    assert hit.value() == 2
    assert subject.answered(2) == [0.5, 1]


@pytest.mark.parametrize("text", ["max_batch_size: 8", CACHED.replace("true", "false")])
def test_a_model_takes_part_only_if_its_configuration_says_so(bench: Any, cache: ResponseCache, text: str) -> None:
    subject = bench(text, cache=cache)
    for _ in range(2):
        subject.scheduler.infer(subject.request(1))
    assert subject.batches == [[1], [1]]
    assert len(cache) == 0


@pytest.mark.parametrize("submitted", [False, True])
def test_a_client_that_changes_its_memory_meanwhile_cannot_have_a_wrong_answer_kept(
    bench: Any, cache: ResponseCache, submitted: bool
) -> None:
    subject = bench(CACHED, cache=cache)
    instance = subject.scheduler._inner.instances[0]
    request = subject.request(1, volatile=True)
    request.output_places = {"y": object()}
    theirs = request.inputs["x"].array
    run = instance._run

    def run_late(*args: Any) -> Any:
        theirs[:] = 100
        return run(*args)

    instance._run = run_late
    if submitted:
        subject.submit_request(request, 1).response()
    else:
        subject.scheduler.infer(request)
    instance._run = run
    assert not request.output_places
    assert subject.scheduler.infer(subject.request(1)).outputs["y"].array.tolist() == [[2]]
    assert subject.batches == [[1]]
