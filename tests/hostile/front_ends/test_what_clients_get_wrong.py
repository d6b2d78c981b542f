"""F3, F6, F7, F9: what clients get wrong is their error, with Triton's status, and harms nobody else."""

import json
from collections.abc import Iterator
from typing import Any, Final

import grpc
import pytest
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.handlers.headers import HeaderForwarding
from repoagent_server.handlers.operations import LoadParameters

from repoagent.errors import InvalidArgumentError

_INFER: Final = "/v2/models/numbers/infer"
_INPUT: Final[dict[str, Any]] = {"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}
_NO: Final = [("triton_grpc_error", "false")]
_YES: Final = [("triton_grpc_error", "true")]


def _nested(depth: int) -> Any:
    value: Any = [1]
    for _ in range(depth - 1):
        value = [value]
    return value


def test_values_may_be_nested_a_hundred_deep_and_no_deeper(ways: Any) -> None:
    for depth, status in ((100, 200), (101, 400), (5000, 400)):
        text = '{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":%s}]}' % (
            "[" * depth + "1" + "]" * depth
        )
        answer = ways.http.post(_INFER, content=text)
        assert answer.status_code == status, (depth, answer.text)
    assert answer.json()["error"] == "JSON nesting depth exceeds maximum allowed limit (100)"


@pytest.mark.parametrize("size", [2**62, 2**63, 2**64, 10**30])
def test_a_shape_whose_elements_overflow_is_the_clients_fault(ways: Any, size: int) -> None:
    answer = ways.http.post(_INFER, json={"inputs": [_INPUT | {"shape": [2**62, 16]}]})
    assert answer.status_code == 400, answer.text
    text = json.dumps({"inputs": [_INPUT | {"shape": ["S", 16]}]}).replace('"S"', str(size))
    assert ways.http.post(_INFER, content=text).status_code == 400


@pytest.mark.parametrize(
    "body", ['{"ready":"yes"}', '{"ready":1}', '{"x":%s}' % ("[" * 5000 + "]" * 5000), "[" * 99999]
)
def test_an_index_request_that_makes_no_sense_is_the_clients_fault(ways: Any, body: str) -> None:
    assert ways.http.post("/v2/repository/index", content=body).status_code == 400


_NUMBERS: Final = {
    "data": ("/v2/models/numbers/infer", {"inputs": [_INPUT | {"data": ["N"]}]}),
    "data in lists": ("/v2/models/numbers/infer", {"inputs": [_INPUT | {"data": [["N"]]}]}),
    "a parameter": ("/v2/models/numbers/infer", {"inputs": [_INPUT], "parameters": {"x": "N"}}),
    "a generated tensor": ("/v2/models/numbers/generate", {"INPUT0": "N"}),
    "a generated parameter": ("/v2/models/numbers/generate", {"INPUT0": 1, "parameters": {"x": "N"}}),
    "openai": ("/v1/completions", {"model": "numbers", "prompt": "x", "temperature": "N"}),
    "openai's biases": ("/v1/completions", {"model": "numbers", "prompt": "x", "logit_bias": {"1": "N"}}),
}


@pytest.mark.parametrize("number", ["1" + "0" * 309, "-" + "9" * 400, "9" * 5000, "1e999"])
@pytest.mark.parametrize("place", _NUMBERS)
def test_a_number_that_no_float_holds_is_no_fault_of_the_server(
    ways: Any, place: str, number: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, document = _NUMBERS[place]
    answer = ways.http.post(path, content=json.dumps(document).replace('"N"', number))
    assert "Number too big to be stored in double." in answer.text
    assert "the server's log" not in answer.text
    assert not [record for record in caplog.records if record.exc_info]


def test_an_output_is_asked_for_once(ways: Any) -> None:
    answer = ways.http.post(_INFER, json={"inputs": [_INPUT], "outputs": [{"name": "OUTPUT0"}] * 2})
    assert answer.status_code == 400
    assert "output 'OUTPUT0' already exists in request" in answer.json()["error"]
    with grpc.insecure_channel(ways.grpc) as channel, pytest.raises(grpc.RpcError) as refused:
        _unary(channel, _message(outputs=[{"name": "OUTPUT0"}] * 2))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "output 'OUTPUT0' already exists in request" in refused.value.details()


@pytest.mark.parametrize("name", ["sequence_id", "Timeout", "priority", "triton_enable_empty_final_response"])
def test_a_forwarded_header_cannot_be_a_parameter_with_a_meaning(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"the header '{name}' cannot become a parameter"):
        HeaderForwarding(".*").chosen([(name.encode(), b"1")])


def test_a_leading_slash_of_a_file_in_a_load_means_nothing() -> None:
    parameters = LoadParameters()
    parameters.add("file:/1/model.py", b"x")
    assert parameters.files == {"1/model.py": b"x"}


def _message(model: str = "numbers", **more: Any) -> pb.ModelInferRequest:
    tensor = pb.ModelInferRequest.InferInputTensor(name="INPUT0", datatype="FP32", shape=[1])
    tensor.contents.fp32_contents.append(1)
    return pb.ModelInferRequest(model_name=model, inputs=[tensor], **more)


def _unary(channel: grpc.Channel, message: pb.ModelInferRequest) -> Any:
    path = "/inference.GRPCInferenceService/ModelInfer"
    return channel.unary_unary(path, pb.ModelInferRequest.SerializeToString)(message, timeout=120)


def _stream(ways: Any, messages: list[pb.ModelInferRequest], metadata: list[tuple[str, str]]) -> Iterator[str]:
    """The id or the error of each answer; at the end the status, if it is not OK."""
    path = "/inference.GRPCInferenceService/ModelStreamInfer"
    with grpc.insecure_channel(ways.grpc) as channel:
        call = channel.stream_stream(
            path, pb.ModelInferRequest.SerializeToString, pb.ModelStreamInferResponse.FromString
        )
        try:
            for answer in call(iter(messages), timeout=120, metadata=metadata):
                yield answer.error_message or answer.infer_response.id
        except grpc.RpcError as error:
            yield f"{error.code().name}: {error.details()}"


def test_a_stream_goes_on_after_an_error_unless_the_client_wants_errors_as_statuses(ways: Any) -> None:
    messages = [_message(id="a"), _message("unknown", id="b"), _message(id="c")]
    usual = list(_stream(ways, messages, _NO))
    assert sorted(usual)[1:] == ["a", "c"]
    assert usual == list(_stream(ways, messages, [])) or sorted(usual)[0].startswith("Request for unknown model")
    *before, status = _stream(ways, messages, _YES)
    assert status.startswith("NOT_FOUND: Request for unknown model: 'unknown' is not found")
    assert set(before) <= {"a"}
    assert list(_stream(ways, [_message(id="a")], _YES)) == ["a"]
