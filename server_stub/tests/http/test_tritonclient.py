"""Triton's own HTTP client, unmodified, against this server."""

import base64
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as triton
from repoagent_server.http.frontend import HttpFrontend
from tritonclient.utils import InferenceServerException

from repoagent.serving.requests.tensor import NUMPY_TYPES, DataType


@pytest.fixture
def client(start: Any) -> Iterator[Any]:
    front: HttpFrontend = start(allow_load_parameters=True)
    host, port = front.bind()
    with triton.InferenceServerClient(f"{host}:{port}") as client:
        yield client


def test_repository(client: Any, core: Any) -> None:
    assert {"name": "ident", "version": "1", "state": "READY"} in client.get_model_repository_index()
    client.load_model("ident", config='{"max_batch_size": "16"}', files={"file:1/model.onnx": b"\0\1\2"})
    client.unload_model("ident", unload_dependents=True)
    assert core.calls[1:] == [
        ("load", "ident", '{"max_batch_size": "16"}', {"1/model.onnx": b"\0\1\2"}),
        ("unload", "ident", True),
    ]
    with pytest.raises(InferenceServerException, match="failed to load 'nosuch', failed to poll from model repository"):
        client.load_model("nosuch")


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_numbers_and_text_in_and_out(client: Any, binary_in: bool, binary_out: bool) -> None:
    values = np.array([[1.5, -2, 3e10]], np.float32)
    texts = np.array([b"a", "é".encode(), b"with\0nul"], object)
    for model, array, datatype in (("ident", values, "FP32"), ("str", texts, "BYTES")):
        tensor = triton.InferInput("INPUT0", array.shape, datatype)
        tensor.set_data_from_numpy(array, binary_data=binary_in)
        wanted = triton.InferRequestedOutput("OUTPUT0", binary_data=binary_out)
        result = client.infer(model, [tensor], outputs=[wanted], request_id="r7")
        assert result.get_response()["id"] == "r7"
        got = result.as_numpy("OUTPUT0")
        if datatype == "BYTES" and not binary_out:
            got = np.array([text.encode() for text in got], object)
        assert np.array_equal(got, array)


def test_inputs_in_json_and_in_binary_together(client: Any) -> None:
    a, b = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    first, second = triton.InferInput("INPUT0", [4], "FP32"), triton.InferInput("INPUT1", [4], "FP32")
    first.set_data_from_numpy(a, binary_data=False)
    second.set_data_from_numpy(b, binary_data=True)
    outputs = [triton.InferRequestedOutput("OUTPUT0", binary_data=True), triton.InferRequestedOutput("OUTPUT1", False)]
    result = client.infer("addsub", [first, second], outputs=outputs)
    assert np.array_equal(result.as_numpy("OUTPUT0"), a + b)
    assert np.array_equal(result.as_numpy("OUTPUT1"), a - b)
    only = client.infer("addsub", [first, second], outputs=[triton.InferRequestedOutput("OUTPUT1")])
    assert only.as_numpy("OUTPUT0") is None
    assert np.array_equal(only.as_numpy("OUTPUT1"), a - b)


@pytest.mark.parametrize(
    "data_type", [t for t in DataType if t not in (DataType.INVALID, DataType.BYTES, DataType.BF16)]
)
def test_every_type_in_binary(client: Any, core: Any, data_type: DataType) -> None:
    array = np.array([0, 1, 1, 0]).astype(NUMPY_TYPES[data_type])
    tensor = triton.InferInput("INPUT0", [4], data_type.name)
    tensor.set_data_from_numpy(array)
    got = client.infer("any", [tensor]).as_numpy("OUTPUT0")
    assert got.dtype == array.dtype
    assert np.array_equal(got, array)
    assert core.requests[-1].inputs["INPUT0"].data_type is data_type


def test_bf16_travels_as_its_bits(client: Any) -> None:
    array = np.array([1.5, -2.25], ml_dtypes.bfloat16)
    tensor = triton.InferInput("INPUT0", [2], "BF16")
    tensor.set_data_from_numpy(array)
    assert np.array_equal(client.infer("any", [tensor]).as_numpy("OUTPUT0"), array)


def test_what_a_core_raises_besides_is_an_internal_error(client: Any) -> None:
    tensor = triton.InferInput("INPUT0", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 2), np.float32))
    with pytest.raises(InferenceServerException, match="KeyError") as error:
        client.infer("addsub", [tensor])
    assert error.value.status() == "500"


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.register_system_shared_memory("r", "/k", 8),
        lambda client: client.get_system_shared_memory_status(),
        lambda client: client.unregister_system_shared_memory(),
        lambda client: client.register_cuda_shared_memory("r", base64.b64encode(bytes(64)), 0, 8),
    ],
    ids=["register", "status", "unregister", "cuda"],
)
def test_shared_memory_is_off_unless_it_is_allowed(client: Any, call: Callable[[Any], object]) -> None:
    off = r"Client shared memory is disabled\. Start the server with '--allow-client-shm=true' to enable\."
    with pytest.raises(InferenceServerException, match=off) as error:
        call(client)
    assert error.value.status() == "501"
    tensor = triton.InferInput("INPUT0", [1], "FP32")
    tensor.set_shared_memory("r", 4)
    with pytest.raises(InferenceServerException, match=off):
        client.infer("ident", [tensor])


def test_clients_may_clean_up_what_cuda_shared_memory_they_never_had(client: Any) -> None:
    client.unregister_cuda_shared_memory()
    assert client.get_cuda_shared_memory_status() == []
