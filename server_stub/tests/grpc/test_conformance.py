"""The same message in, the same status, text and message out as a stock Triton.

``../data/triton_2_51_grpc.json`` was recorded from Triton 2.51.0 (the 24.10 release) with four Python models: "ident"
(FP32 [-1], batches of up to 8) returns what it is given, "params" the parameters of the request, "bad" answers with an
error of the kind that its input says, and "dec" is decoupled and answers once less than its input says.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from google.protobuf import json_format
from repoagent_server.grpc.frontend import GrpcFrontend
from repoagent_server.handlers.inference import Served
from repoagent_server.shared.grpc_options import GrpcOptions
from tritonclient.grpc import service_pb2, service_pb2_grpc

from repoagent.serving.core import ServingCore
from server_stub.tests.cores import every_model

_CASES: Final[list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "data" / "triton_2_51_grpc.json").read_text()
)
_HEAD: Final = """
import numpy as np
import triton_python_backend_utils as pb_utils
def value(request):
    return pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
def answer(array):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])
class TritonPythonModel:
    def execute(self, requests):
"""
_MODELS: Final = {
    "ident": ("        return [answer(value(request)) for request in requests]", "FP32", "max_batch_size: 8"),
    "params": ("        return [answer(np.array([r.parameters()], object)) for r in requests]", "STRING", ""),
    "bad": (
        """
        kinds = {1: (), 2: (pb_utils.TritonError.INVALID_ARG,)}
        wanted = [value(request)[0] for request in requests]
        return [
            pb_utils.InferenceResponse(error=pb_utils.TritonError("err", *kinds[kind]))
            if kind in kinds else answer(np.ones(1, np.float32)) for kind in wanted
        ]
        """,
        "FP32",
        "",
    ),
    "dec": (
        """
        for request in requests:
            sender, count = request.get_response_sender(), value(request)[0]
            if count == 1:
                error = pb_utils.InferenceResponse(error=pb_utils.TritonError("err"))
                sender.send(error, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                continue
            for number in range(int(count) - 1):
                sender.send(answer(np.array([number], np.float32)))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        """,
        "FP32",
        "model_transaction_policy { decoupled: true }",
    ),
}

# What is answered differently on purpose; docs/reference/grpc.md has the list.
_DIFFERENT: Final = {
    "dup output": "output 'OUTPUT0' already exists in request",  # as 2.73 has it
    "ver 1x": "failed to get model version from specified version string '1x'",
    "extra input": "Got input(s) ['INPUT0','X'], but missing required input(s) [].",
    "raw count": "expected 1 raw_input_contents, one for each input, but got 2",
    "param neg timeout": "invalid value for 'timeout', expected value >= 0.",
    "no contents empty": None,
    "batch 0": None,
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("conformance")
    for name, (code, output, more) in _MODELS.items():
        model = folder / "models" / name
        (model / "1").mkdir(parents=True)
        (model / "1" / "model.py").write_text(_HEAD + code)
        tensors = 'input { name: "INPUT0" data_type: TYPE_FP32 dims: [-1] }\n'
        tensors += f'output {{ name: "OUTPUT0" data_type: TYPE_{output} dims: [-1] }}\n'
        (model / "config.pbtxt").write_text(f'backend: "python"\n{tensors}{more}')
    with ServingCore(every_model(folder)) as core:
        front = GrpcFrontend(Served(core), GrpcOptions(port=0))
        front.start()
        with grpc.insecure_channel("{}:{}".format(*front.bind())) as channel:
            yield service_pb2_grpc.GRPCInferenceServiceStub(channel)
        front.stop()


def _message(case: dict[str, Any]) -> Any:
    return json_format.ParseDict(case["request"], service_pb2.ModelInferRequest())


def _shown(message: Any) -> Any:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _unary(service: Any, message: Any) -> list[Any]:
    try:
        return ["OK", _shown(service.ModelInfer(message, timeout=60))]
    except grpc.RpcError as error:
        return [error.code().name, error.details()]


def _stream(service: Any, message: Any) -> list[Any]:
    return ["OK", [_shown(response) for response in service.ModelStreamInfer(iter([message]), timeout=60)]]


@pytest.mark.parametrize(
    "case", [case for case in _CASES if case["name"] not in _DIFFERENT], ids=lambda case: case["name"].replace(" ", "-")
)
def test_answers_as_triton_does(service: Any, case: dict[str, Any]) -> None:
    assert _unary(service, _message(case)) == case["unary"]
    if "stream" in case:
        assert _stream(service, _message(case)) == case["stream"]


@pytest.mark.parametrize(
    "case", [case for case in _CASES if case["name"] in _DIFFERENT], ids=lambda case: case["name"].replace(" ", "-")
)
def test_answers_otherwise_only_where_the_documentation_says_so(service: Any, case: dict[str, Any]) -> None:
    code, answer = _unary(service, _message(case))
    expected = _DIFFERENT[case["name"]]
    assert (code, answer) != tuple(case["unary"])
    assert code == "OK" if expected is None else expected in answer
