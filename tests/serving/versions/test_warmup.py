import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from repoagent.config import read_text
from repoagent.errors import CancelledError, InternalError, InvalidArgumentError, RepoAgentError, UnavailableError
from repoagent.serving.instances.backend import BackendInstance
from repoagent.serving.instances.native_instances import NativeInstance
from repoagent.serving.instances.runner_instances import RunnerInstance
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.tensor import parse_bytes_tensor
from repoagent.serving.scheduling.sequence_controls import SequenceStates
from repoagent.serving.versions.warmup import warm_up
from tests.serving.version_contexts import version_of

INPUT = 'inputs { key: "x" value: { data_type: %s dims: [ 2, 2 ] %s } }'


def config(body: str, batch: int = 4) -> Any:
    return read_text(f'name: "m" max_batch_size: {batch} model_warmup {{ name: "s" {body} }}')


@pytest.fixture
def seen(new_runner: Any) -> tuple[list[Any], list[Any]]:
    """What two instances were rehearsed with, and the instances."""
    arrays: list[Any] = []
    instances = []
    for _ in range(2):
        runner = new_runner()

        def run(inputs: Any, outputs: Any) -> dict[str, Any]:
            arrays.append(inputs["x"].array)
            return {}

        runner.run = run
        instances.append(RunnerInstance(version_of(batching=True), runner))
    return arrays, instances


def test_every_sample_runs_count_times_on_every_instance(seen: Any, memory_files: Callable[..., Any]) -> None:
    arrays, instances = seen
    warm_up(config("batch_size: 3 count: 2 " + INPUT % ("TYPE_FP32", "zero_data: true")), memory_files({}), instances)
    assert len(arrays) == 4
    assert {array.shape for array in arrays} == {(3, 2, 2)}
    assert not any(array.any() for array in arrays)


def test_a_model_without_batching_gets_no_batch_dimension(seen: Any, memory_files: Callable[..., Any]) -> None:
    arrays, instances = seen
    warm_up(config("batch_size: 1 " + INPUT % ("TYPE_INT8", "random_data: true"), 0), memory_files({}), instances)
    assert {(array.shape, array.dtype) for array in arrays} == {((2, 2), np.dtype(np.int8))}


def test_data_can_come_from_a_file(seen: Any, memory_files: Callable[..., Any]) -> None:
    arrays, instances = seen
    files = memory_files({"warmup/raw": np.arange(4, dtype=np.float32).tobytes()})
    warm_up(config(INPUT % ("TYPE_FP32", 'input_data_file: "raw"')), files, instances)
    np.testing.assert_array_equal(arrays[0], [[[0, 1], [2, 3]]])


def test_text_can_come_from_a_file(seen: Any, memory_files: Callable[..., Any]) -> None:
    arrays, instances = seen
    raw = b"".join(len(word).to_bytes(4, "little") + word for word in (b"a", b"", b"ccc", b"\x00"))
    warm_up(config(INPUT % ("TYPE_STRING", 'input_data_file: "raw"')), memory_files({"warmup/raw": raw}), instances)
    assert arrays[0].tolist() == [[[b"a", b""], [b"ccc", b"\x00"]]]


@pytest.mark.parametrize("content", [b"123", np.zeros(5, np.float32).tobytes()])
def test_a_file_of_the_wrong_size_is_refused_by_name(
    seen: Any, memory_files: Callable[..., Any], content: bytes
) -> None:
    files = memory_files({"warmup/raw": content})
    with pytest.raises(InvalidArgumentError, match=r"sample 's', input 'x': file 'warmup/raw' has \d+ bytes, expected"):
        warm_up(config(INPUT % ("TYPE_FP32", 'input_data_file: "raw"')), files, seen[1])


def test_a_sample_of_a_sequence_has_its_controls_and_states_unless_it_names_them(
    new_runner: Any, memory_files: Callable[..., Any]
) -> None:
    found = read_text("""
name: "m" max_batch_size: 4
sequence_batching {
  control_input { name: "start" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } }
  control_input { name: "id" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
  control_input { name: "ready" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [0, 1] } }
  state { input_name: "s" output_name: "t" data_type: TYPE_FP32 dims: [-1, 2] }
}
model_warmup {
  name: "s" batch_size: 2
  inputs { key: "x" value { data_type: TYPE_FP32 dims: [1] zero_data: true } }
  inputs { key: "ready" value { data_type: TYPE_INT32 dims: [1] zero_data: true } }
}
""")
    runner, files = new_runner(), memory_files({})
    given: list[Any] = []

    def run(inputs: Any, outputs: Any) -> dict[str, Any]:
        given.append({name: it.array.tolist() for name, it in inputs.items()})
        return {}

    runner.run = run
    warm_up(found, files, [RunnerInstance(version_of(), runner)], SequenceStates.of(found, files))
    zeros, ones = [[0], [0]], [[1], [1]]
    assert given == [{"x": zeros, "ready": zeros, "start": ones, "id": ones, "s": 2 * [[[0, 0]]]}]


class Streaming(BackendInstance):
    """A backend's instance that sends two answers, the second of which may be an error."""

    def __init__(self, error: RepoAgentError | None = None) -> None:
        self._error = error

    def execute(self, requests: Sequence[InferRequest]) -> None:
        for request in requests:
            request.send(InferResponse("m", "1"), False)
            request.send(InferResponse("m", "1", error=self._error), False)
            request.send(None, True)

    def close(self) -> None:
        pass


def test_a_decoupled_model_may_give_any_number_of_answers(memory_files: Callable[..., Any]) -> None:
    sample = config(INPUT % ("TYPE_FP32", "zero_data: true"))
    good, bad = (
        NativeInstance(version_of(decoupled=True), Streaming(error)) for error in (None, InternalError("not yet"))
    )
    warm_up(sample, memory_files({}), [good])
    with pytest.raises(InternalError, match="sample 's' of model 'm': not yet"):
        warm_up(sample, memory_files({}), [bad])


def test_variable_dimensions_are_refused(seen: Any, memory_files: Callable[..., Any]) -> None:
    body = 'inputs { key: "x" value: { data_type: TYPE_FP32 dims: [ -1 ] zero_data: true } }'
    with pytest.raises(InvalidArgumentError, match="positive dims are required"):
        warm_up(config(body), memory_files({}), seen[1])


def test_a_model_that_fails_on_a_sample_is_told_with_the_sample(
    new_runner: Any, memory_files: Callable[..., Any]
) -> None:
    runner = new_runner()
    runner.error = InternalError("too cold")
    instance = RunnerInstance(version_of(), runner)
    with pytest.raises(InternalError, match="failed to run warmup sample 's' of model 'm': too cold"):
        warm_up(config(INPUT % ("TYPE_FP32", "zero_data: true")), memory_files({}), [instance])


@pytest.mark.parametrize("content", [b"\x01\x00\x00", b"\x05\x00\x00\x00abc"])
def test_a_bytes_tensor_that_breaks_off_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="ends in the middle"):
        parse_bytes_tensor(content)


class Deaf:
    """An instance whose requests end when the test says so, and not by being cancelled."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.ended = threading.Event()

    def rehearse(self, request: InferRequest) -> None:
        self.began.set()
        assert self.may_end.wait(60)
        self.ended.set()


@pytest.mark.parametrize("by_a_cancel", [True, False])
def test_a_sample_that_no_cancel_ends_is_left_behind(
    memory_files: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, by_a_cancel: bool
) -> None:
    monkeypatch.setattr("repoagent.serving.versions.warmup._GRACE_SECONDS", 0.0)
    monkeypatch.setattr("repoagent.serving.versions.warmup._LOOK_SECONDS", 0.001)
    deaf: Any = Deaf()
    sample = config(INPUT % ("TYPE_FP32", "zero_data: true"))
    cancelled = deaf.began.is_set if by_a_cancel else lambda: False
    error: type[RepoAgentError] = CancelledError if by_a_cancel else UnavailableError
    with pytest.raises(error, match="was cancelled" if by_a_cancel else "longer than 1 seconds"):
        warm_up(sample, memory_files({}), [deaf], None, cancelled, limit_seconds=0 if by_a_cancel else 1)
    assert not deaf.ended.is_set()
    deaf.may_end.set()
    assert deaf.ended.wait(60)
