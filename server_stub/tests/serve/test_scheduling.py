"""Schedulers behind both protocols, asked by Triton's own clients: sequences, the response cache, queue policies."""

import json
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.utils import InferenceServerException

from server_stub.tests.serve.conftest import PROCESSES

if TYPE_CHECKING:
    from server_stub.tests.serve.conftest import Server, World

TENSORS = """
backend: "python"
max_batch_size: 4
input { name: "X" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] }
"""

SUMS = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    sums = {}

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", self.add(request))]) for request in requests]

    def add(self, request):
        read = lambda name: pb_utils.get_input_tensor_by_name(request, name).as_numpy()
        name, start, value = read("NAME").flat[0], read("START").flat[0], read("X")
        self.sums[name] = value if start else self.sums[name] + value
        return self.sums[name]
"""

COUNTS = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    calls = 0

    def execute(self, requests):
        self.calls += 1
        answer = pb_utils.Tensor("Y", np.array([[self.calls]], np.int32))
        return [pb_utils.InferenceResponse([answer]) for _ in requests]
"""

SEQUENCES = """
sequence_batching {
  oldest { max_candidate_sequences: 4 }
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "NAME" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }
}
"""


@pytest.fixture(scope="module")
def server(world: "World") -> "Server":
    models = {"sums": (SUMS, SEQUENCES), "counts": (COUNTS, "response_cache { enable: true }")}
    for name, (code, text) in models.items():
        (world.models / name / "1").mkdir(parents=True)
        (world.models / name / "1" / "model.py").write_text(code)
        (world.models / name / "config.pbtxt").write_text(TENSORS + text)
    return world.start("--model-control-mode=none", "--cache-config=local,size=100000").wait_ready()


@pytest.fixture(params=["http", "grpc"])
def ask(request: pytest.FixtureRequest, server: "Server", world: "World") -> Any:
    """``ask(model, value, **options)`` over either protocol, from any thread: Triton's HTTP client is for one."""
    library: Any = over_http if request.param == "http" else over_grpc
    place = json.loads((world.root / "ready-0.json").read_text())[request.param]

    def call(model: str, value: int, **fields: Any) -> int:
        tensor = library.InferInput("X", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.array([[value]], np.int32))
        with library.InferenceServerClient(f"{place['address']}:{place['port']}") as client:
            answer: int = client.infer(model, [tensor], **fields).as_numpy("Y").item()
        return answer

    return call


def test_sequences_with_text_ids_keep_their_state_apart(ask: Any) -> None:
    sums: dict[str, list[int]] = {}

    def client(name: str, value: int) -> None:
        flags = [{"sequence_start": True}, {}, {"sequence_end": True}]
        sums[name] = [ask("sums", value, sequence_id=name, **each) for each in flags]

    threads = [threading.Thread(target=client, args=(f"sequence-{value}", value)) for value in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == {f"sequence-{value}": [value, 2 * value, 3 * value] for value in range(1, 7)}


def test_a_sequence_that_was_not_started_has_tritons_text(ask: Any) -> None:
    with pytest.raises(
        InferenceServerException, match="inference request for sequence ghost to model 'sums' must spec"
    ):
        ask("sums", 1, sequence_id="ghost")
    with pytest.raises(InferenceServerException, match="must specify a non-zero or non-empty correlation ID"):
        ask("sums", 1)


@pytest.mark.skipif(bool(PROCESSES), reason="each worker has its own response cache")
def test_equal_requests_are_answered_from_the_cache(ask: Any, server: "Server") -> None:
    first = ask("counts", 1)
    assert [ask("counts", 1), ask("counts", 1)] == [first, first]
    stats = server.http.get("/v2/models/counts/stats").json()["model_stats"][0]
    assert stats["inference_stats"]["cache_miss"]["count"] == 1
    assert stats["inference_stats"]["cache_hit"]["count"] >= 2
