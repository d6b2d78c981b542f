"""The schedulers where they are used: models from a repository, with ONNX Runtime and the Python backend."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from repoagent.errors import InvalidArgumentError
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor
from tests.onnx_models import model_bytes

CONTROLS = """
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
  control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT32 } }
"""

ACCUMULATOR = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        name = pb_utils.get_input_tensor_by_name(request, "CORRID").as_numpy().flat[0]
        start = pb_utils.get_input_tensor_by_name(request, "START").as_numpy().flat[0]
        value = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        if not pb_utils.get_input_tensor_by_name(request, "READY").as_numpy().flat[0]:
            return pb_utils.InferenceResponse([pb_utils.Tensor("y", value)])  # An empty slot.
        self.sums[name] = value if start else self.sums[name] + value
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", self.sums[name])])
"""


@pytest.fixture
def core_of(tmp_path: Path) -> Iterator[Callable[..., ServingCore]]:
    """Starts a core that serves one model ``m``."""
    cores = []

    def make(config: str, filename: str, content: bytes, **fields: Any) -> ServingCore:
        directory = tmp_path / "models" / "m"
        (directory / "1").mkdir(parents=True)
        (directory / "1" / filename).write_bytes(content)
        (directory / "config.pbtxt").write_text(config)
        options = CoreOptions(
            repositories=(str(tmp_path / "models"),),
            control_mode=ControlMode.POLL,
            poll_seconds=3600,
            repoagent_directory=None,
            workspace_directory=tmp_path / "workspace",
            cache_directory=tmp_path / "cache",
            **fields,
        )
        cores.append(ServingCore(options))
        cores[-1].start()
        return cores[-1]

    yield make
    for core in cores:
        core.stop()


def onnx_with_controls() -> bytes:
    """y = x + 10 START + 100 READY, and the correlation id as c."""
    nodes = [
        helper.make_node("Mul", ["START", "ten"], ["s"]),
        helper.make_node("Mul", ["READY", "hundred"], ["r"]),
        helper.make_node("Add", ["x", "s"], ["xs"]),
        helper.make_node("Add", ["xs", "r"], ["y"]),
        helper.make_node("Identity", ["CORRID"], ["c"]),
    ]
    names = ["x", "START", "READY", "CORRID"]
    constants = [onnx.numpy_helper.from_array(np.array(v, np.int32), n) for n, v in [("ten", 10), ("hundred", 100)]]
    inputs, outputs = ([(name, TensorProto.INT32, ["N", 1]) for name in some] for some in (names, ("y", "c")))
    return model_bytes(nodes, inputs, outputs, constants)


def step(core: ServingCore, value: int, sequence: int, flags: str = "") -> dict[str, int]:
    request = InferRequest(
        Asked(
            "m",
            {"x": Tensor.of(np.array([[value]], np.int32))},
            correlation_id=sequence,
            sequence_start="S" in flags,
            sequence_end="E" in flags,
        )
    )
    return {name: tensor.array.item() for name, tensor in core.infer(request).outputs.items()}


def test_an_onnx_model_is_completed_without_its_controls_and_gets_them(core_of: Callable[..., ServingCore]) -> None:
    config = f'backend: "onnxruntime" max_batch_size: 4 sequence_batching {{ direct {{ }} {CONTROLS} }}'
    core = core_of(config, "model.onnx", onnx_with_controls())
    assert [item["name"] for item in core.model_config("m")["input"]] == ["x"]
    assert step(core, 1, 7, "S") == {"y": 111, "c": 7}
    assert step(core, 2, 8, "S") == {"y": 112, "c": 8}
    assert step(core, 3, 8) == {"y": 103, "c": 8}
    assert step(core, 4, 7, "E") == {"y": 104, "c": 7}
    with pytest.raises(InvalidArgumentError, match="must specify the START flag"):
        step(core, 5, 7)


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 1 }"])
def test_the_end_of_the_server_does_not_wait_for_sequences_that_hold_slots(
    core_of: Callable[..., ServingCore], new_sender: Any, strategy: str
) -> None:
    idle = "max_sequence_idle_microseconds: 3600000000"
    config = f'backend: "onnxruntime" max_batch_size: 1 sequence_batching {{ {strategy} {idle} {CONTROLS} }}'
    core = core_of(config, "model.onnx", onnx_with_controls(), exit_timeout_seconds=600)
    assert step(core, 1, 7, "S") == {"y": 111, "c": 7}
    waiting = new_sender()
    inputs = {"x": Tensor.of(np.array([[2]], np.int32))}
    core.submit(InferRequest(Asked("m", inputs, correlation_id=8, sequence_start=True), waiting))
    core.stop()
    assert waiting.final().outputs["y"].array.item() == 112


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 3 }"])
def test_a_python_model_keeps_the_state_of_many_sequences(core_of: Callable[..., ServingCore], strategy: str) -> None:
    config = f"""
        backend: "python"
        max_batch_size: 4
        input {{ name: "x" data_type: TYPE_INT32 dims: [ 1 ] }}
        output {{ name: "y" data_type: TYPE_INT32 dims: [ 1 ] }}
        sequence_batching {{ {strategy} {CONTROLS} }}
        instance_group {{ count: 2 kind: KIND_CPU }}
    """
    core = core_of(config, "model.py", ACCUMULATOR.encode())
    sums: dict[int, list[int]] = {}

    def client(sequence: int) -> None:
        flags = ["S", "", "", "E"]
        sums[sequence] = [step(core, sequence, sequence, flag)["y"] for flag in flags]

    threads = [threading.Thread(target=client, args=(sequence,)) for sequence in range(1, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == {sequence: [sequence * count for count in (1, 2, 3, 4)] for sequence in range(1, 13)}
    entry = core.statistics("m")["model_stats"][0]
    assert entry["inference_count"] == 48


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 3 }"])
def test_a_sequence_that_is_open_during_a_reload_is_told_to_begin_again(
    core_of: Callable[..., ServingCore], tmp_path: Path, strategy: str
) -> None:
    config = f"""
        backend: "python"
        input {{ name: "x" data_type: TYPE_INT32 dims: [ 1 ] }}
        output {{ name: "y" data_type: TYPE_INT32 dims: [ 1 ] }}
        sequence_batching {{ {strategy} {CONTROLS} }}
        instance_group {{ kind: KIND_CPU }}
    """
    flat = ACCUMULATOR.replace("value if start", "value if start == 1")
    core = core_of(config, "model.py", flat.encode())

    def add(value: int, flags: str = "") -> int:
        tensor = Tensor.of(np.array([value], np.int32))
        request = InferRequest(Asked("m", {"x": tensor}, correlation_id=7, sequence_start="S" in flags))
        return int(core.infer(request).outputs["y"].array[0])

    assert [add(1, "S"), add(2)] == [1, 3]
    (tmp_path / "models" / "m" / "1" / "model.py").write_text(flat + "\n# changed")
    core.poll()
    with pytest.raises(InvalidArgumentError) as caught:
        add(3)
    assert str(caught.value) == (
        "inference request for sequence 7 to model 'm' must specify the START flag on the first request of the sequence"
    )
    assert [add(4, "S"), add(5)] == [4, 9]


def test_a_batch_of_requests_through_the_core_is_the_same_as_one_by_one(
    core_of: Callable[..., ServingCore], add_constant: Any, new_sender: Any
) -> None:
    config = 'backend: "onnxruntime" max_batch_size: 16 dynamic_batching { max_queue_delay_microseconds: 2000 }'
    core = core_of(config, "model.onnx", add_constant(0.5))
    sender = new_sender()
    for number in range(50):
        values = np.full((1 + number % 3, 4), number, np.float32)
        core.submit(InferRequest(Asked("m", {"x": Tensor.of(values)}, id=str(number)), sender))
    for _ in range(50):
        response = sender.final()
        number = int(response.id)
        assert response.error is None
        assert response.outputs["y"].array.tolist() == np.full((1 + number % 3, 4), number + 0.5).tolist()
    assert core.statistics("m")["model_stats"][0]["execution_count"] < 50


def test_the_response_cache_answers_equal_requests_until_the_model_changes(
    core_of: Callable[..., ServingCore], add_constant: Any, tmp_path: Path
) -> None:
    config = 'backend: "onnxruntime" max_batch_size: 4 response_cache { enable: true }'
    core = core_of(config, "model.onnx", add_constant(0.5), cache_config={"local": {"size": "100000"}})

    def ask() -> Any:
        values = Tensor.of(np.ones((1, 4), np.float32))
        return core.infer(InferRequest(Asked("m", {"x": values}))).outputs["y"].array.tolist()

    assert [ask(), ask()] == [[[1.5] * 4]] * 2
    entry = core.statistics("m")["model_stats"][0]
    assert entry["inference_count"] == 1
    assert entry["inference_stats"]["cache_hit"]["count"] == 1
    (tmp_path / "models" / "m" / "1" / "model.onnx").write_bytes(add_constant(7))
    core.poll()
    assert ask() == [[8] * 4]


@pytest.mark.parametrize(
    "text", ["sequence_batching { }", "model_transaction_policy { decoupled: true }"], ids=["sequences", "decoupled"]
)
def test_models_whose_answers_cannot_be_kept_are_refused_with_a_cache(
    core_of: Callable[..., ServingCore], add_constant: Any, text: str
) -> None:
    config = f'backend: "onnxruntime" max_batch_size: 4 response_cache {{ enable: true }} {text}'
    core = core_of(config, "model.onnx", add_constant(1), exit_on_error=False)
    (entry,) = core.index()
    assert "Response Cache does not currently support model m" in entry["reason"]
