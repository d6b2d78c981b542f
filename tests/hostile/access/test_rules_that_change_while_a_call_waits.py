"""Calls that were opened before their client lost its rights, and go on afterwards, are judged by the new rules."""

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from server_stub.tests.access.conftest import PATIENCE, Guarded, client, tables
from server_stub.tests.conftest import Objects, objects

__all__ = ["objects"]

_METADATA = [("x-api-key", "leaving-key")]
_ROOT = [("x-api-key", "root-key")]
_SERVICE = "/inference.GRPCInferenceService/"


@pytest.fixture
def channel(guarded: Guarded) -> Iterator[grpc.Channel]:
    guarded.write(*tables(guarded.issuer), client("leaving"))
    with grpc.insecure_channel(guarded.grpc) as channel:
        yield channel
    guarded.write(*tables(guarded.issuer))


@pytest.mark.parametrize("method", ["RepositoryModelLoad", "RepositoryIndex", "LogSettings", "ModelConfig"])
def test_a_call_that_sends_its_message_after_its_key_is_gone_is_refused(
    guarded: Guarded, channel: grpc.Channel, method: str
) -> None:
    messages: dict[str, Any] = {
        "RepositoryModelLoad": service_pb2.RepositoryModelLoadRequest(model_name="shared"),
        "RepositoryIndex": service_pb2.RepositoryIndexRequest(),
        "LogSettings": service_pb2.LogSettingsRequest(),
        "ModelConfig": service_pb2.ModelConfigRequest(name="shared"),
    }
    go_on = threading.Event()

    def late() -> Iterator[Any]:
        go_on.wait(PATIENCE)
        yield messages[method]

    begin = channel.stream_unary(f"{_SERVICE}{method}", lambda message: message.SerializeToString(), bytes)
    call = begin.future(late(), metadata=_METADATA)
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    stub.ServerMetadata(service_pb2.ServerMetadataRequest(), metadata=_METADATA)  # comes after the headers of the call
    guarded.write(*tables(guarded.issuer))
    go_on.set()
    assert call.exception(PATIENCE).code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_stream_whose_client_lost_the_right_names_no_shared_memory(
    guarded: Guarded, channel: grpc.Channel, objects: Objects
) -> None:
    objects.make("secret", 16, np.arange(4, dtype=np.float32).tobytes())
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    region = service_pb2.SystemSharedMemoryRegisterRequest(name="late", key=objects.key("secret"), byte_size=16)
    stub.SystemSharedMemoryRegister(region, metadata=_ROOT)
    message = service_pb2.ModelInferRequest(model_name="shared")
    tensor = message.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
    tensor.parameters["shared_memory_region"].string_param = "late"
    tensor.parameters["shared_memory_byte_size"].int64_param = 16
    go_on = threading.Semaphore(1)
    over = threading.Event()

    def messages() -> Iterator[Any]:
        while go_on.acquire(timeout=PATIENCE) and not over.is_set():
            yield message

    answers = stub.ModelStreamInfer(messages(), metadata=_METADATA)
    try:
        assert next(answers).infer_response.raw_output_contents
        guarded.write(*tables(guarded.issuer), client("leaving", rights="infer"))
        go_on.release()
        answer = next(answers)
        assert "shared memory needs the right 'manage'" in answer.error_message
        assert not answer.infer_response.raw_output_contents
    finally:
        over.set()
        go_on.release()
        answers.cancel()
        stub.SystemSharedMemoryUnregister(service_pb2.SystemSharedMemoryUnregisterRequest(), metadata=_ROOT)
