"""A load that changes nothing but instance groups makes and closes the difference of the instances."""

import json
import threading
import time
from typing import Any

import pytest

from repoagent.errors import RepoAgentError
from repoagent.serving.core import ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.versions.served_model import ServedModel
from tests.extent import in_full
from tests.serving.core_kit import CoreMaker, ModelWriter, RequestMaker, first, in_thread

BATCHING = (
    'max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: [4] } '
    'output { name: "y" data_type: TYPE_FP32 dims: [4] } '
)
SCHEDULERS = ["", BATCHING + "dynamic_batching {}", BATCHING + "dynamic_batching { preserve_ordering: true }"]
KINDS = pytest.mark.parametrize("scheduler", SCHEDULERS[:2], ids=["direct", "batching"])


def text(count: int, more: str = "") -> str:
    return f'backend: "scripted" {more} instance_group {{ count: {count} }}'


def served(core: ServingCore) -> ServedModel:
    return core.find(InferRequest(Asked("m", {})))


def at_once(core: ServingCore, request_of: RequestMaker, runners: list[Any], count: int) -> list[object]:
    """Answers to ``count`` requests that are all executed at the same time, each on an instance of its own."""
    hold = threading.Event()
    for runner in runners:
        runner.hold = hold
    threads = [in_thread(lambda: first(core.infer(request_of()))) for _ in range(count)]
    for runner in runners[:count]:
        assert runner.running.acquire(timeout=60)
    hold.set()
    for thread, _ in threads:
        thread.join(60)
    for runner in runners:
        runner.hold = None
    return [answer for _, answers in threads for answer in answers]


@KINDS
def test_more_instances_are_made_beside_those_that_serve(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, scripted: Any, scheduler: str
) -> None:
    write_model("m", {1: "1"}, text(1, scheduler))
    core = new_core()
    core.load("m")
    before = served(core)
    (runner,) = scripted.runners
    runner.hold = threading.Event()
    held, first_answer = in_thread(lambda: first(core.infer(request_of())))
    assert runner.running.acquire(timeout=60)
    write_model("m", {}, text(3, scheduler))
    core.load("m")
    assert served(core) is before
    assert len(scripted.runners) == 3
    assert scripted.models_open == 1
    others = scripted.runners[1:]
    assert at_once(core, request_of, others, 2) == [2, 2]  # While the first one still runs its request.
    runner.hold.set()
    held.join(60)
    assert first_answer == [2]
    assert core.model_config("m")["instance_group"][0]["count"] == 3
    core.unload("m")
    assert all(runner.closed for runner in scripted.runners)


@KINDS
def test_the_configuration_that_is_shown_can_be_sent_with_other_instances(
    new_core: CoreMaker, write_model: ModelWriter, scripted: Any, scheduler: str
) -> None:
    """L29: only the instances change."""
    write_model("m", {1: "1"}, text(1, scheduler))
    core = new_core()
    core.load("m")
    before = served(core)
    for count in (3, 2):
        shown = core.model_config("m")
        shown["instance_group"][0]["count"] = count
        core.load("m", config=json.dumps(shown))
        assert served(core) is before
    write_model("m", {}, text(1, scheduler))
    core.load("m")
    assert served(core) is before
    assert [runner.closed for runner in scripted.runners] == [False, True, True]
    shown["parameters"] = {"other": {"string_value": "x"}}
    core.load("m", config=json.dumps(shown))
    assert served(core) is not before


@KINDS
def test_fewer_instances_are_closed_when_their_requests_have_ended(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, scripted: Any, scheduler: str
) -> None:
    write_model("m", {1: "1"}, text(3, scheduler))
    core = new_core()
    core.load("m")
    before = served(core)
    hold = threading.Event()
    for runner in scripted.runners:
        runner.hold = hold
    held = [in_thread(lambda: first(core.infer(request_of()))) for _ in range(3)]
    for runner in scripted.runners:
        assert runner.running.acquire(timeout=60)
    write_model("m", {}, text(1, scheduler))
    core.load("m")
    assert served(core) is before
    assert [runner.closed for runner in scripted.runners] == [False, False, False]
    hold.set()
    for thread, _ in held:
        thread.join(60)
    assert [answers for _, answers in held] == [[2], [2], [2]]
    deadline = time.monotonic() + 60
    while sum(runner.closed for runner in scripted.runners) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert [runner.closed for runner in scripted.runners] == [False, True, True]
    for _ in range(5):
        assert first(core.infer(request_of())) == 2
    assert len(scripted.runners) == 3
    core.unload("m")
    assert all(runner.closed for runner in scripted.runners)


def test_idle_instances_go_at_once_and_come_back_under_their_names(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, scripted: Any
) -> None:
    write_model("m", {1: "1"}, text(1))
    core = new_core()
    for count in (2, 1, 4, 2, 3):
        write_model("m", {}, text(count))
        core.load("m")
        assert first(core.infer(request_of())) == 2
        deadline = time.monotonic() + 60
        while sum(not runner.closed for runner in scripted.runners) != count and time.monotonic() < deadline:
            time.sleep(0.001)
        assert sum(not runner.closed for runner in scripted.runners) == count
    assert scripted.loading.acquire(blocking=False)
    assert not scripted.loading.acquire(blocking=False)  # The model itself was loaded once.


def test_added_instances_are_warmed_up_and_a_failure_there_changes_nothing(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, scripted: Any
) -> None:
    warm = 'model_warmup { name: "w" inputs { key: "x" value { data_type: TYPE_FP32 dims: [1, 4] zero_data: true } } }'
    write_model("m", {1: "1"}, text(1, warm))
    core = new_core()
    core.load("m")
    write_model("m", {}, text(2, warm))
    core.load("m")
    assert [runner.calls for runner in scripted.runners] == [1, 1]

    make = scripted.failing_from = len(scripted.runners)
    assert make == 2
    write_model("m", {}, text(3, warm))
    with pytest.raises(RepoAgentError, match="made to fail"):
        core.load("m")
    assert [runner.closed for runner in scripted.runners] == [False, False, True]
    assert first(core.infer(request_of())) == 2


def test_more_instances_than_a_server_allows_are_refused_before_one_is_made(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, scripted: Any
) -> None:
    write_model("m", {1: "1"}, text(1))
    core = new_core()
    core.load("m")
    write_model("m", {}, text(1_000_000))
    with pytest.raises(RepoAgentError, match="1000000"):
        core.load("m")
    assert len(scripted.runners) == 1
    assert first(core.infer(request_of())) == 2


def test_a_model_with_sequences_is_made_again(new_core: CoreMaker, write_model: ModelWriter, scripted: Any) -> None:
    """Its sequences belong to instances: those of the version before end there."""
    sequences = "max_batch_size: 4 sequence_batching {}"
    write_model("m", {1: "1"}, text(1, sequences))
    core = new_core()
    core.load("m")
    before = served(core)
    write_model("m", {}, text(2, sequences))
    core.load("m")
    assert served(core) is not before
    assert [runner.closed for runner in scripted.runners].count(False) == 2


@pytest.mark.slow
def test_requests_under_changes_are_answered_once_and_rightly(
    new_core: CoreMaker, write_model: ModelWriter, request_of: RequestMaker, scripted: Any
) -> None:
    for scheduler in SCHEDULERS:
        write_model("m", {1: "1"}, text(2, scheduler))
        core = new_core()
        core.load("m")
        stop = threading.Event()

        def ask(core: ServingCore = core, stop: threading.Event = stop) -> list[object]:
            wrong: list[object] = []
            while not stop.is_set():
                try:
                    answer = first(core.infer(request_of()))
                except RepoAgentError as error:
                    wrong.append(error)
                else:
                    if answer != 2:
                        wrong.append(answer)
            return wrong

        askers = [in_thread(ask) for _ in range(4)]
        for number in range(in_full(60, otherwise=20)):
            write_model("m", {}, text(1 + number % 4, scheduler))
            core.load("m")
        stop.set()
        for thread, wrong in askers:
            thread.join(60)
            assert not thread.is_alive()
            assert wrong == [[]]
        core.unload("m")
        assert all(runner.closed for runner in scripted.runners)
