from typing import Any

import numpy as np
import pytest

from repoagent.config import ModelConfig, read_text
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse
from repoagent.serving.requests.tensor import Tensor
from repoagent.serving.scheduling.batch_queue import BatchQueue, BatchRule, BatchSettings
from repoagent.serving.scheduling.sequence_controls import SequenceControls
from repoagent.serving.scheduling.sequence_slots import OldestSlots
from repoagent.serving.scheduling.sequence_table import SequenceTable, Slot
from repoagent.serving.scheduling.steps import Entry
from repoagent.serving.scheduling.wrappers import OrderKeeper


class Log:
    def __init__(self, names: list[str], name: str) -> None:
        self.names = names
        self.name = name

    def send(self, response: InferResponse | None, final: bool) -> None:
        self.names.append(self.name)


class Subject:
    """One instance with two candidates, driven by hand."""

    def __init__(self, keeper: OrderKeeper | None = None) -> None:
        config: ModelConfig = read_text('name: "m" max_batch_size: 4 sequence_batching { oldest { } }')
        self.slots = [Slot(0, 0), Slot(0, 1)]
        self.table = SequenceTable("m", self.slots, 1_000_000)
        batcher = BatchQueue(BatchSettings.of(config), BatchRule(config))
        self.source = OldestSlots(self.slots, self.table, SequenceControls(config), batcher, self.over, keeper)
        self.answered: list[str] = []

    def over(self, slot: Slot) -> None:
        self.source.finished(slot, 0)

    def put(self, name: str, flags: str = "") -> InferRequest:
        inputs = {"x": Tensor.of(np.zeros((1, 1), np.float32))}
        start, end = "S" in flags, "E" in flags
        asked = Asked("m", inputs, id=name, correlation_id=name[0], sequence_start=start, sequence_end=end)
        request = InferRequest(asked, Log(self.answered, name))
        slot = self.table.place(Entry(request, 1, 0), 0)
        if slot is not None:
            self.source.advance(slot, 0)
        return request

    def batch(self) -> list[InferRequest]:
        return list(self.source.next(0).batch)


def names(batch: list[InferRequest]) -> list[str]:
    return [request.asked.id for request in batch]


def answer(request: InferRequest) -> None:
    request.send(None, True)


@pytest.fixture
def subject() -> Subject:
    return Subject()


def test_a_batch_has_at_most_one_request_of_each_sequence(subject: Subject) -> None:
    for name, flags in [("a1", "S"), ("a2", ""), ("b1", "S"), ("b2", "")]:
        subject.put(name, flags)
    first = subject.batch()
    assert names(first) == ["a1", "b1"]
    assert len(subject.source) == 0
    assert subject.source.waiting == 2
    answer(first[1])
    assert names(subject.batch()) == ["b2"]
    answer(first[0])
    assert names(subject.batch()) == ["a2"]


def test_the_slot_of_an_ended_sequence_waits_for_its_last_answer(subject: Subject) -> None:
    for name, flags in [("a1", "SE"), ("b1", "S"), ("c1", "S")]:
        subject.put(name, flags)
    first = subject.batch()
    assert names(first) == ["a1", "b1"]
    answer(first[0])
    assert names(subject.batch()) == ["c1"]


def test_a_cancelled_request_in_the_batcher_lets_the_sequence_go_on(subject: Subject) -> None:
    gone = subject.put("a1", "S")
    subject.put("a2")
    gone.cancel()
    step = subject.source.next(0)
    assert [refusal.request for refusal in step.refusals] == [gone]
    answer(gone)
    assert names(subject.batch()) == ["a2"]


def test_an_idle_sequence_leaves_when_its_request_has_been_answered(subject: Subject) -> None:
    subject.put("a1", "S")
    first = subject.batch()
    subject.put("b1", "SE")
    subject.put("c1", "S")
    answer(subject.batch()[0])
    (ended,) = [slot for slot in subject.table.reap(1_000_000) if slot.sequence == "a"]
    subject.source.advance(ended, 1_000_000)
    subject.put("d1", "S")
    assert subject.table.waiting == 1
    answer(first[0])
    assert subject.table.waiting == 0


def in_what_order(keeper: OrderKeeper | None) -> list[str]:
    subject = Subject(keeper)
    subject.put("a1", "S")
    subject.put("b1", "S")
    first, second = subject.batch()
    answer(second)
    answer(first)
    return subject.answered


def test_answers_keep_the_order_only_if_asked_to() -> None:
    assert in_what_order(OrderKeeper()) == ["a1", "b1"]
    assert in_what_order(None) == ["b1", "a1"]


def test_draining_takes_everything_out(subject: Subject) -> None:
    requests: list[Any] = [subject.put("a1", "S"), subject.put("a2"), subject.put("b1", "S")]
    assert set(names(subject.source.drain())) == {request.asked.id for request in requests}
    assert subject.source.waiting == 0
