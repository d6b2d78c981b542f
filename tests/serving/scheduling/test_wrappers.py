import threading
from typing import Any

import pytest

from repoagent.serving.requests.request import Asked, InferRequest, InferResponse
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
