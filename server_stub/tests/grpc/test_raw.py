"""What no client library sends: typed contents, contradictions, reflection, health, and foreign messages."""

from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.service import METHODS, SERVICE
from tritonclient.grpc import service_pb2 as theirs
from tritonclient.grpc import service_pb2_grpc

from repoagent.serving.requests.request import InferResponse
from repoagent.serving.requests.tensor import Tensor


@pytest.fixture
def channel(grpc_port: int) -> Any:
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        yield channel


def request(**fields: Any) -> theirs.ModelInferRequest:
    return theirs.ModelInferRequest(model_name="any", **fields)


def entry(datatype: str, shape: list[int], **contents: Any) -> theirs.ModelInferRequest.InferInputTensor:
    made = theirs.ModelInferRequest.InferInputTensor(name="INPUT0", datatype=datatype, shape=shape)
    if contents:
        made.contents.CopyFrom(theirs.InferTensorContents(**contents))
    return made


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("BOOL", "bool_contents", [True, False]),
        ("INT8", "int_contents", [-128, 127]),
        ("INT16", "int_contents", [-5, 5]),
        ("INT32", "int_contents", [-5, 5]),
        ("INT64", "int64_contents", [-(2**63), 5]),
        ("UINT8", "uint_contents", [0, 255]),
        ("UINT32", "uint_contents", [0, 2**32 - 1]),
        ("UINT64", "uint64_contents", [0, 2**64 - 1]),
        ("FP32", "fp32_contents", [0.5, -1.0]),
        ("FP64", "fp64_contents", [0.1, -1.0]),
        ("BYTES", "bytes_contents", [b"a\x00", b""]),
    ],
)
def test_typed_contents_of_every_type(
    channel: grpc.Channel, core: Any, datatype: str, field: str, values: list[Any]
) -> None:
    service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(
        request(inputs=[entry(datatype, [2], **{field: values})])
    )
    tensor = core.requests[-1].inputs["INPUT0"]
    assert tensor.data_type.name == datatype
    assert tensor.array.tolist() == values


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            request(inputs=[entry("FP32", [1], fp32_contents=[1])], raw_input_contents=[b"\0" * 4]),
            "contents field must not be specified when using raw_input_contents for 'INPUT0' for model 'any'",
        ),
        (request(inputs=[entry("FP32", [1])], raw_input_contents=[b"\0" * 4] * 2), "expected 1 raw_input_contents"),
        (request(inputs=[entry("FP32", [2])], raw_input_contents=[b"\0" * 4]), "Expected 8, got 4"),
        (request(inputs=[entry("FP32", [2], fp32_contents=[1])]), "Expected 8, got 4"),
        (request(inputs=[entry("FP32", [1], int_contents=[1])]), "of type 'INT32', expected datatype 'FP32'"),
        (request(inputs=[entry("FP16", [1], fp32_contents=[1])]), "of type 'FP32', expected datatype 'FP16'"),
        (request(inputs=[entry("INT8", [1], int_contents=[200])]), "cannot hold"),
        (
            request(inputs=[entry("FP32", [-1], fp32_contents=[1])]),
            "All input dimensions should be specified for input 'INPUT0' for model 'any', got [-1]",
        ),
        (request(inputs=[entry("FP32", [2**62, 2, 0])], raw_input_contents=[b""]), "which no array can have"),
        (request(inputs=[entry("FP32", [2**62, 2, 0])]), "which no array can have"),
        (request(inputs=[entry("FP32", [1] * 80, fp32_contents=[1])]), "80 dimensions, and at most 64"),
        (request(inputs=[entry("FP99", [1])]), "invalid datatype for input INPUT0"),
        (request(inputs=[entry("FP32", [1], fp32_contents=[1])] * 2), "input 'INPUT0' already exists in request"),
        (request(parameters={"triton_x": {"bool_param": True}}), "reserved for Triton usage"),
        (
            request(parameters={"sequence_id": {"bool_param": True}}),
            "invalid value type for 'sequence_id' parameter, expected int64_param or string_param.",
        ),
        (request(parameters={"priority": {"int64_param": -1}}), "expected value >= 0"),
        (request(parameters={"mine": {}}), "invalid value type for 'mine' parameter"),
        (request(model_version="abc"), "failed to get model version from specified version string 'abc'"),
    ],
)
def test_what_makes_no_sense_is_an_invalid_argument(
    channel: grpc.Channel, message: theirs.ModelInferRequest, text: str
) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert text in raised.value.details()


def test_garbage_is_refused_and_the_server_goes_on(channel: grpc.Channel) -> None:
    send = channel.unary_unary(f"/{SERVICE}/ModelInfer", lambda data: data, lambda data: data)
    with pytest.raises(grpc.RpcError):
        send(b"\xff" * 100)
    unknown = channel.unary_unary(f"/{SERVICE}/NoSuchMethod", lambda data: data, lambda data: data)
    with pytest.raises(grpc.RpcError) as raised:
        unknown(b"")
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerLive(theirs.ServerLiveRequest()).live


def test_the_messages_are_those_of_the_stock_client() -> None:
    ours = {message.name: message for message in pb.DESCRIPTOR.message_types_by_name.values()}
    for message in theirs.DESCRIPTOR.message_types_by_name.values():
        assert shape_of(ours[message.name]) == shape_of(message), message.name


def shape_of(message: Any) -> dict[str, Any]:
    fields = {
        field.name: (field.number, field.type, field.is_repeated, field.message_type and field.message_type.name)
        for field in message.fields
    }
    return fields | {nested.name: shape_of(nested) for nested in message.nested_types}


def test_every_method_of_the_stock_service_exists() -> None:
    service = theirs.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert {method.name for method in service.methods} == {*METHODS, "ModelStreamInfer"}


def test_health(channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for name in ("", SERVICE):
        status = stub.Check(health_pb2.HealthCheckRequest(service=name)).status
        assert status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_shows_the_service_under_its_public_name(channel: grpc.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    ask = reflection_pb2.ServerReflectionRequest
    listed, found = stub.ServerReflectionInfo(iter([ask(list_services=""), ask(file_containing_symbol=SERVICE)]))
    assert SERVICE in {service.name for service in listed.list_services_response.service}
    file = FileDescriptorProto.FromString(found.file_descriptor_response.file_descriptor_proto[0])
    assert file.package == "inference"
    assert {method.name for method in file.service[0].method} == {*METHODS, "ModelStreamInfer"}


def test_a_message_of_a_stream_that_is_not_valid_ends_it(channel: grpc.Channel) -> None:
    method = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
    good = request(inputs=[entry("FP32", [1], fp32_contents=[1])]).SerializeToString()
    with pytest.raises(grpc.RpcError) as raised:
        list(method(iter([good, b"\xff\xff"]), timeout=60))
    assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.INTERNAL, "the message is not valid")


def test_requests_of_a_stream_stay_in_their_order_whatever_their_size(channel: grpc.Channel, core: Any) -> None:
    sizes = [1, 1, 1 << 18, 1, 4, 1 << 17, 1, 1, 1, 1 << 18, 1] * 3
    asked = [
        request(
            id=str(number),
            inputs=[entry("FP32", [size])],
            raw_input_contents=[bytes(4 * size)],
            parameters={"sequence_id": theirs.InferParameter(int64_param=7)},
        )
        for number, size in enumerate(sizes)
    ]
    answers = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter(asked), timeout=60)
    ids = [answer.infer_response.id for answer in answers]
    assert [one.asked.id for one in core.requests] == ids == [str(number) for number in range(len(sizes))]


@pytest.mark.parametrize("receipt", ["sha256:0a", ""])
def test_no_model_names_a_receipt_of_its_own_in_a_stream(receipt: str, channel: grpc.Channel, core: Any) -> None:
    """Where its load had none, the model's parameter went out under the server's name."""
    outputs = {"OUTPUT0": Tensor.of(np.zeros(1, np.float32))}
    forged: dict[str, Any] = {"repoagent-attestation": "sha256:ff", "mine": "kept"}
    core.responses = [(InferResponse("any", "1", "", outputs, parameters=forged, receipt=receipt), True)]
    asked = request(inputs=[entry("FP32", [1], fp32_contents=[1.0])])
    (answer,) = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([asked]), timeout=60)
    found = {name: value.string_param for name, value in answer.infer_response.parameters.items()}
    assert found.get("repoagent-attestation", "") == receipt
    assert found["mine"] == "kept"


@pytest.mark.parametrize("values", [1, 200_000])
@pytest.mark.parametrize("receipt", ["sha256:0a", ""])
def test_an_answer_names_the_receipt_of_what_answered(
    values: int, receipt: str, channel: grpc.Channel, core: Any
) -> None:
    """As initial metadata, beside the call's own name; a large call is another road."""
    outputs = {"OUTPUT0": Tensor.of(np.zeros(values, np.float32))}
    core.responses = [(InferResponse("any", "1", "", outputs, receipt=receipt), True)]
    asked = request(inputs=[entry("FP32", [values], fp32_contents=[1.0] * values)])
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    for _ in range(2):  # requests with the same headers share them
        _, call = stub.ModelInfer.with_call(asked, metadata=[("x-request-id", "r-1")])
        found = {name: value for name, value in call.initial_metadata() if name != "accept-encoding"}
        assert found == {"x-request-id": "r-1"} | ({"repoagent-attestation": receipt} if receipt else {})
