"""A thread that submits requests, such as a front end's loop, executes none much larger than those found quick."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pytest

from repoagent.serving.instances.backend import BatchRunner
from repoagent.serving.instances.runner_instances import RunnerInstance
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.senders import CollectingSender
from repoagent.serving.requests.tensor import DataType, Tensor
from repoagent.serving.scheduling.scheduler import Scheduler
from repoagent.serving.versions.instance_set import new_scheduler
from tests.serving.scheduling.conftest import complete_config
from tests.serving.version_contexts import version_of

_SETTINGS: Final = {"direct": "", "dynamic": "max_batch_size: 1000000 dynamic_batching {}"}


class _Runner(BatchRunner):
    """Notes which thread has run how many values; time passes as the values say."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, bool]] = []
        self.now_ns = 0
        self._here = threading.get_ident()

    def run(self, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
        array = inputs["x"].array
        self.runs.append((array.size, threading.get_ident() == self._here))
        self.now_ns += array.size * 100
        return {"y": inputs["x"]}

    def close(self) -> None:
        pass


Submit = Callable[[Any], bool]


@pytest.fixture(params=_SETTINGS)
def submit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Submit]:
    """Submit one request with an array; whether this thread executed it."""
    runner, version = _Runner(), version_of(config=complete_config(_SETTINGS[request.param], dims="-1"))
    monkeypatch.setattr("repoagent.serving.instances.runner_instances.time.monotonic_ns", lambda: runner.now_ns)
    scheduler: Scheduler = new_scheduler(version, [RunnerInstance(version, runner)])

    def one(array: Any) -> bool:
        data_type = DataType.BYTES if array.dtype == object else DataType.FP32
        sender = CollectingSender()
        scheduler.submit(InferRequest(Asked("m", {"x": Tensor(data_type, array)}), sender))
        sender.result("m")
        return runner.runs[-1][1]

    yield one
    scheduler.close()


def _values(count: int) -> Any:
    return np.zeros((1, count), np.float32)


def _texts(count: int, length: int) -> Any:
    return np.array([[b"a" * length] * count], object)


def test_a_huge_request_to_a_quick_model(submit: Submit) -> None:
    for _ in range(100):
        submit(_values(4))
    assert submit(_values(4))
    assert not submit(_values(4_000_000))


def test_sizes_grow_as_they_are_found_quick(submit: Submit) -> None:
    for _ in range(100):
        submit(_values(4))
    assert submit(_values(16))
    assert not submit(_values(500))
    assert submit(_values(500)), "a worker has found it quick"
    assert not submit(_values(100_000))
    for _ in range(1000):
        submit(_values(4))
    assert submit(_values(4))
    assert not submit(_values(100_000)), "a worker has found it slow"


def test_texts_count_by_their_length(submit: Submit) -> None:
    for _ in range(100):
        submit(_texts(1, 4))
    assert submit(_texts(1, 8))
    assert not submit(_texts(1, 1 << 20))
    assert not submit(_texts(5000, 0))
