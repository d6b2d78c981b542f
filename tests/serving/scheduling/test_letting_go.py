"""Threads that wait for work keep nothing of the last one in memory: tensors may lie in memory that a client shares."""

import threading
import weakref
from typing import Any

import pytest

PATIENCE = 120.0
WAYS = {
    "one by one": "",
    "dynamic": "max_batch_size: 8 dynamic_batching { }",
    "pairs": "max_batch_size: 2 dynamic_batching { }",
    "sequences": "max_batch_size: 8 sequence_batching { }",
}


def _submit(subject: Any, value: float, **fields: Any) -> tuple[Any, Any, threading.Event]:
    """(request, its answer, what is set when its tensor is in memory no more)."""
    request, gone = subject.request(value, **fields), threading.Event()
    weakref.finalize(request.inputs["x"].array, gone.set)
    return request, subject.submit_request(request, value), gone


def _fields(way: str, number: int) -> dict[str, Any]:
    return {"correlation_id": number, "sequence_start": True, "sequence_end": True} if way == "sequences" else {}


@pytest.mark.parametrize("way", WAYS)
def test_an_answered_request_is_let_go(bench: Any, way: str) -> None:
    subject = bench(WAYS[way])
    subject.plug(**_fields(way, 1))
    waiting = [_submit(subject, value, **_fields(way, value + 1))[1:] for value in (1, 2, 3)]
    subject.unplug()
    assert [answer.value() for answer, _ in waiting] == [2, 4, 6]
    subject.runners[0].inputs.clear()  # What the test's own runner has written down.
    assert all(gone.wait(PATIENCE) for _, gone in waiting)


@pytest.mark.parametrize("way", WAYS)
def test_a_cancelled_request_is_let_go(bench: Any, way: str) -> None:
    subject = bench(WAYS[way])
    subject.plug(**_fields(way, 1))
    request, answer, gone = _submit(subject, 1, **_fields(way, 2))
    request.cancel()
    del request
    answer.error()
    del answer
    subject.unplug()
    assert gone.wait(PATIENCE)
