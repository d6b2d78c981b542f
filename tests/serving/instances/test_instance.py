from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from repoagent.config import normalize, read_text
from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError
from repoagent.serving.instances.backend import BackendInstance, Capability, InstanceSpec
from repoagent.serving.instances.instance import instance_specs
from repoagent.serving.instances.native_instances import NativeInstance
from repoagent.serving.instances.runner_instances import RunnerInstance
from repoagent.serving.measuring.statistics import ModelStatistics
from repoagent.serving.requests.request import InferRequest, InferResponse
from tests.serving.version_contexts import version_of

RequestMaker = Callable[..., InferRequest]


def specs(text: str, gpus: Sequence[int] = ()) -> list[InstanceSpec]:
    return instance_specs(normalize(read_text(text), model_name="m", gpus=gpus))


def test_a_model_without_groups_has_one_cpu_instance() -> None:
    assert specs("") == [InstanceSpec("m_0", "CPU", 0)]


def test_groups_multiply_counts_and_devices() -> None:
    text = "instance_group [ { count: 2 kind: KIND_GPU gpus: [0, 1] }, { name: 'own' kind: KIND_MODEL } ]"
    assert specs(text) == [
        InstanceSpec("m_0_0", "GPU", 0),
        InstanceSpec("m_0_1", "GPU", 0),
        InstanceSpec("m_0_2", "GPU", 1),
        InstanceSpec("m_0_3", "GPU", 1),
        InstanceSpec("own_0", "MODEL", 0),
    ]


def test_an_instance_knows_the_profiles_that_its_group_names() -> None:
    text = "instance_group [ { count: 2 kind: KIND_GPU gpus: [0] profile: ['1', '0'] }, { kind: KIND_CPU } ]"
    assert [spec.profiles for spec in specs(text)] == [("1", "0"), ("1", "0"), ()]


def test_a_runner_answers_with_its_outputs_and_is_counted(new_runner: Any, request_of: RequestMaker) -> None:
    statistics = ModelStatistics()
    instance = RunnerInstance(version_of(statistics, version=2, batching=True), new_runner(1))
    response = instance.call(request_of(values=np.ones((3, 4)), id="r"))
    assert (response.model_name, response.model_version, response.id) == ("m", "2", "r")
    np.testing.assert_array_equal(response.outputs["y"].array, np.full((3, 4), 2))
    snapshot = statistics.snapshot()
    assert (snapshot.success, snapshot.inference_count, snapshot.execution_count) == (1, 3, 1)


class Ticks:
    """A clock that goes on by ``step`` nanoseconds at each look."""

    def __init__(self, step: int) -> None:
        self.now = 0
        self.step = step

    def __call__(self) -> int:
        self.now += self.step
        return self.now


@pytest.mark.parametrize("only_computes", [True, False])
def test_waiting_for_the_interpreter_makes_a_model_slow_unless_it_only_computes(
    new_runner: Any, request_of: RequestMaker, monkeypatch: pytest.MonkeyPatch, only_computes: bool
) -> None:
    runner = new_runner(1)
    runner.capabilities = Capability.ONLY_COMPUTES if only_computes else Capability.NONE
    instance = RunnerInstance(version_of(batching=True), runner)
    wall, processor = Ticks(5_000_000), Ticks(1000)
    monkeypatch.setattr("repoagent.serving.instances.runner_instances.time.monotonic_ns", wall)
    monkeypatch.setattr("repoagent.serving.instances.runner_instances.time.thread_time_ns", processor)
    for _ in range(200):
        instance.call(request_of())
        instance.execute([request_of(), request_of()])
    assert (instance.run_time.usual_ns < 1_000_000) is only_computes
    assert processor.now > 0


def test_what_a_runner_raises_becomes_an_error_of_ours_and_is_counted(
    new_runner: Any, request_of: RequestMaker, new_sender: Any, caplog: pytest.LogCaptureFixture
) -> None:
    statistics, runner = ModelStatistics(), new_runner()
    instance = RunnerInstance(version_of(statistics), runner)
    runner.error = ZeroDivisionError("by zero")
    with pytest.raises(InternalError, match="ZeroDivisionError: by zero"):
        instance.call(request_of())
    assert "Traceback" in caplog.text
    runner.error = InvalidArgumentError("no")
    sender = new_sender()
    instance.execute([request_of(sender=sender)])
    assert isinstance(sender.final().error, InvalidArgumentError)
    assert statistics.snapshot().failures["BACKEND"] == 2


def test_reshapes_are_applied_on_both_sides(new_runner: Any, request_of: RequestMaker) -> None:
    config = read_text(
        """
        max_batch_size: 4
        input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2, 2 ] } }
        output { name: "y" data_type: TYPE_FP32 dims: [ 1, 4 ] reshape { shape: [ 2, 2 ] } }
        """
    )
    runner = new_runner()
    seen: list[Any] = []
    run = runner.run

    def watched(inputs: Any, outputs: Any) -> Any:
        seen.append(inputs["x"].shape)
        return run(inputs, outputs)

    runner.run = watched
    instance = RunnerInstance(version_of(config=config), runner)
    assert instance.call(request_of(values=np.ones((3, 4)))).outputs["y"].shape == (3, 1, 4)
    assert seen == [(3, 2, 2)]


class Native(BackendInstance):
    """A native instance that answers as its ``answers`` say."""

    def __init__(self) -> None:
        self.answers: list[InferResponse | None] = []
        self.error: Exception | None = None
        self.requests: list[InferRequest] = []

    def execute(self, requests: Sequence[InferRequest]) -> None:
        self.requests += requests
        for request in requests:
            if self.answers:
                for answer in self.answers[:-1]:
                    request.send(answer, False)
                request.send(self.answers[-1], True)
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.requests.clear()


def test_a_native_instance_can_be_called_synchronously(request_of: RequestMaker, new_sender: Any) -> None:
    native, statistics = Native(), ModelStatistics()
    native.answers = [InferResponse("m", "1", id="r")]
    own = new_sender()
    request = request_of(sender=own)
    instance = NativeInstance(version_of(statistics), native)
    assert instance.call(request).id == "r"
    assert own.sent.empty()
    assert request.redirect(own) is own
    assert statistics.snapshot().success == 1
    assert statistics.snapshot().execution_count == 1


def test_a_native_instance_that_raises_answers_those_that_have_no_answer_yet(
    request_of: RequestMaker, new_sender: Any
) -> None:
    native, statistics = Native(), ModelStatistics()
    native.error = RuntimeError("half way")
    sender = new_sender()
    NativeInstance(version_of(statistics), native).execute([request_of(sender=sender)])
    assert str(sender.final().error) == "RuntimeError: half way"
    native.answers = [InferResponse("m", "1")]
    NativeInstance(version_of(statistics), native).execute([request_of(sender=sender)])
    assert sender.final().error is None
    assert sender.sent.empty()


def test_a_rehearsal_counts_nothing_and_raises_what_went_wrong(new_runner: Any, request_of: RequestMaker) -> None:
    statistics, runner, native = ModelStatistics(), new_runner(), Native()
    RunnerInstance(version_of(statistics), runner).rehearse(request_of())
    native.answers = [InferResponse("m", "1")]
    NativeInstance(version_of(statistics), native).rehearse(request_of())
    assert statistics.snapshot().success == 0
    assert runner.calls == len(native.requests) == 1
    native.answers = [InferResponse("m", "1", error=InternalError("cold"))]
    with pytest.raises(RepoAgentError, match="cold"):
        NativeInstance(version_of(statistics), native).rehearse(request_of())
