"""How much memory a tensor takes on its way through gRPC, in a server of its own: finding F1."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.processes import memory_of
from tests.warm import Warm

SIZE: Final = 96 << 20
_MODEL: Final = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array + 1)]) for array in arrays]
"""


@pytest.fixture
def server(warm: Warm, tmp_path: Path) -> Iterator[tuple[int, int]]:
    """The port, and the process."""
    folder = tmp_path / "models" / "plus"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(_MODEL)
    tensor = "data_type: TYPE_FP32 dims: [-1]"
    (folder / "config.pbtxt").write_text(
        f'backend: "python"\ninput {{ name: "INPUT0" {tensor} }}\noutput {{ name: "OUTPUT0" {tensor} }}\n'
    )
    ready = tmp_path / "ready.json"
    command = ["serve", f"--model-repository={tmp_path / 'models'}"]
    command += ["--http-port=0", "--grpc-port=0", "--metrics-port=0", f"--ready-file={ready}"]
    command += [f"--workspace-directory={tmp_path / 'w'}"]
    command += [f"--grpc-max-message-size={2 * SIZE}"]
    with (tmp_path / "log").open("w") as log:
        process = warm.start(command, stdout=log, stderr=log)
    try:
        while not ready.exists():
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.005)
        yield int(json.loads(ready.read_text())["grpc"]["port"]), process.pid
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak of memory cannot be reset")
def test_a_large_tensor_takes_at_most_three_times_its_size(server: tuple[int, int]) -> None:
    port, pid = server
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

        def ask(count: int) -> Any:
            asked = service_pb2.ModelInferRequest(model_name="plus", id="7")
            asked.inputs.add(name="INPUT0", datatype="FP32", shape=[count])
            asked.raw_input_contents.append(np.ones(count, np.float32).tobytes())
            return stub.ModelInfer(asked)

        ask(1 << 10)
        Path(f"/proc/{pid}/clear_refs").write_text("5")
        before = memory_of("VmHWM", pid)
        answer = np.frombuffer(ask(SIZE // 4).raw_output_contents[0], np.float32)
        assert answer.size == SIZE // 4
        assert (answer == 2).all()
        ratio = (memory_of("VmHWM", pid) - before) / SIZE
        assert ratio <= 3.0, ratio
        print(f"{ratio:.2f} bytes per byte")
