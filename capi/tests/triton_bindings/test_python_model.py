"""The binding module over a Python model without a configuration file, found by polling."""

import concurrent.futures
import ctypes
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tb: Any = pytest.importorskip("repoagent_capi.triton_bindings", reason="repoagent-capi is not installed")

MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        for name in ("INPUT0", "INPUT1"):
            auto_complete_model_config.add_input({"name": name, "data_type": "TYPE_FP32", "dims": [4]})
        for name in ("OUTPUT0", "OUTPUT1"):
            auto_complete_model_config.add_output({"name": name, "data_type": "TYPE_FP32", "dims": [4]})
        auto_complete_model_config.set_max_batch_size(0)
        auto_complete_model_config.set_dynamic_batching()
        auto_complete_model_config._model_config["dynamic_batching"]["priority_levels"] = 20
        auto_complete_model_config._model_config["dynamic_batching"]["default_priority_level"] = 10
        return auto_complete_model_config

    def execute(self, requests):
        responses = []
        for request in requests:
            first = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            second = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            outputs = [pb_utils.Tensor("OUTPUT0", first + second), pb_utils.Tensor("OUTPUT1", first - second)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""


@pytest.fixture
def polling(tmp_path: Path) -> Iterator[Any]:
    directory = tmp_path / "python" / "addsub" / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(MODEL)
    options = tb.TRITONSERVER_ServerOptions()
    options.set_model_repository_path(str(tmp_path / "python"))
    options.set_model_control_mode(tb.TRITONSERVER_ModelControlMode.POLL)
    options.set_strict_model_config(False)
    server = tb.TRITONSERVER_Server(options)
    yield server
    server.stop()


def test_the_model_completes_its_own_configuration(polling: Any) -> None:
    assert polling.model_is_ready("addsub", -1)
    config = json.loads(polling.model_config("addsub", -1, 1).serialize_to_json())
    assert [item["name"] for item in config["input"]] == ["INPUT0", "INPUT1"]
    request = tb.TRITONSERVER_InferenceRequest(polling, "addsub", -1)
    for asked, given in ((67, 10), (19, 19)):
        request.priority_uint64 = asked
        assert request.priority_uint64 == given


def test_the_model_answers(polling: Any) -> None:
    request = tb.TRITONSERVER_InferenceRequest(polling, "addsub", -1)
    arrays = {"INPUT0": np.arange(4, dtype=np.float32), "INPUT1": np.ones(4, np.float32)}
    for name, array in arrays.items():
        request.add_input(name, tb.TRITONSERVER_DataType.FP32, array.shape)
        request.append_input_data(name, array.ctypes.data, array.nbytes, tb.TRITONSERVER_MemoryType.CPU, 0)
    polling.infer_async(request)
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    request.get_next_response(future)
    response, flags = future.result(60)
    response.throw_if_response_error()
    assert (response.model, flags) == (("addsub", 1), int(tb.FINAL))
    name, _, shape, address, size, *_ = response.output(0)
    assert (name, shape) == ("OUTPUT0", (4,))
    assert np.frombuffer(ctypes.string_at(address, size), np.float32).tolist() == [1, 2, 3, 4]
