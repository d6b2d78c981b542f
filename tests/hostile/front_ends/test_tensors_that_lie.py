"""Tensors whose shapes, types, sizes and places do not fit: each is refused with a reason, and harms nobody."""

import json
import struct
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Final

import grpc
import pytest
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.handlers.shared_memory import Regions

from tests.hostile.front_ends.conftest import Ways

_SIZE: Final = 64
_REGION: Final = "region"
_TRITON_500: Final = (
    "Unable to parse ",
    "failed to parse the request JSON buffer",
    "shared memory size specified with",
)
"""How Triton begins answers that have the status 500: to JSON of the wrong kind, and to outputs without room."""


@pytest.fixture(scope="module")
def lies(start_ways: Any) -> Iterator[Ways]:
    """Front ends with a registered region of shared memory, of 64 bytes."""
    memory = SharedMemory(create=True, size=_SIZE)
    try:
        ways: Ways = start_ways(regions=Regions(allowed=True))
        answer = ways.http.post(
            f"/v2/systemsharedmemory/region/{_REGION}/register", json={"key": memory.name, "byte_size": _SIZE}
        )
        assert answer.status_code == 200, answer.text
        yield ways
    finally:
        memory.close()
        memory.unlink()


@pytest.fixture(autouse=True)
def _healthy(lies: Ways) -> Iterator[None]:
    """After each case the server is ready, and answers right."""
    yield
    assert lies.http.get("/v2/health/ready").status_code == 200
    answer = lies.http.post("/v2/models/numbers/infer", json={"inputs": [_number()]})
    assert answer.json()["outputs"][0]["data"] == [1, 2]


def _number(**more: Any) -> dict[str, Any]:
    return {"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]} | more


def _refused(ways: Ways, content: bytes, model: str = "numbers", headers: dict[str, str] | None = None) -> None:
    answer = ways.http.post(f"/v2/models/{model}/infer", content=content, headers=headers)
    reason = answer.json()["error"]
    assert reason
    assert answer.status_code in (400, 404) or (answer.status_code == 500 and reason.startswith(_TRITON_500)), reason


_SHAPES: Final = {
    "negative": "[-1]",
    "negative, twice": "[-1, -2]",
    "minus the length": "[-2]",
    "the least of 64 bits": f"[{-(2**63)}]",
    "below 64 bits": f"[{-(2**63) - 1}]",
    "31 bits": f"[{2**31 - 1}]",
    "32 bits": f"[{2**32}]",
    "63 bits": f"[{2**63 - 1}]",
    "64 bits": f"[{2**64 - 1}]",
    "2 to the 64": f"[{2**64}]",
    "2 to the 64, and 2": f"[{2**64 + 2}]",
    "thirty digits": "[" + "9" * 30 + "]",
    "thousands of digits": "[" + "9" * 5000 + "]",
    "a product that wraps to 0": f"[{2**32}, {2**32}]",
    "a product that wraps to 2": f"[{2**63 + 1}, 2]",
    "a product of bytes that wraps": f"[{2**62}, 1]",
    "a product of bytes that wraps to 8": f"[{2**62 + 2}]",
    "huge beside 0": f"[{2**62}, 0]",
    "0 beside huge": f"[0, {2**63}]",
    "0": "[0]",
    "0 twice": "[0, 0]",
    "1": "[1]",
    "3": "[3]",
    "two dimensions": "[1, 2]",
    "no dimension": "[]",
    "33 dimensions": json.dumps([1] * 32 + [2]),
    "65 dimensions": json.dumps([1] * 64 + [2]),
    "100,000 dimensions": json.dumps([1] * 99_999 + [2]),
    "a fraction": "[2.5]",
    "a float": "[2.0]",
    "an exponent": "[2e0]",
    "a huge exponent": "[1e400]",
    "a text": '["2"]',
    "true": "[true, 2]",
    "null": "[null]",
    "nested": "[[2]]",
    "an object": "[{}]",
    "not an array": "2",
    "an object itself": "{}",
    "null itself": "null",
    "NaN": "[NaN]",
    "infinity": "[Infinity]",
}


def _request(shape: str, tensor: dict[str, Any]) -> bytes:
    return json.dumps({"inputs": [tensor | {"shape": "@"}]}).replace('"@"', shape).encode()


@pytest.mark.parametrize("shape", _SHAPES.values(), ids=_SHAPES)
def test_a_shape_that_its_values_do_not_have(lies: Ways, shape: str) -> None:
    if shape == "[0]":  # Triton does not look at the values of a tensor that has none
        answer = lies.http.post("/v2/models/numbers/infer", content=_request(shape, _number()))
        assert answer.json()["outputs"][0]["data"] == []
        return
    _refused(lies, _request(shape, _number()))


@pytest.mark.parametrize("shape", _SHAPES.values(), ids=_SHAPES)
def test_a_shape_that_its_bytes_do_not_have(lies: Ways, shape: str) -> None:
    tensor = {"name": "INPUT0", "datatype": "FP32", "parameters": {"binary_data_size": 8}}
    text = _request(shape, tensor)
    _refused(lies, text + bytes(8), headers={"Inference-Header-Content-Length": str(len(text))})


@pytest.mark.parametrize("shape", _SHAPES.values(), ids=_SHAPES)
def test_a_shape_that_its_place_in_shared_memory_does_not_have(lies: Ways, shape: str) -> None:
    place = {"shared_memory_region": _REGION, "shared_memory_byte_size": 8}
    _refused(lies, _request(shape, {"name": "INPUT0", "datatype": "FP32", "parameters": place}))


@pytest.mark.parametrize(
    "datatype",
    [
        *("", "FP31", "FP128", "fp32", "FP32 ", "FP32\0", "TYPE_FP32", "STRING", "INT4", "OBJECT", "float32", "<f4"),
        *("FP64", "INT32", "BYTES", "BOOL", "BF16", "FP16", "UINT64", None, 1, [], {}, True, "F" * 10_000),
    ],
    ids=lambda datatype: repr(datatype)[:20],
)
def test_a_type_that_does_not_exist_or_is_not_the_models(lies: Ways, datatype: object) -> None:
    _refused(lies, json.dumps({"inputs": [_number(datatype=datatype)]}).encode())
    tensor = {"name": "INPUT0", "datatype": datatype, "shape": [2], "parameters": {"binary_data_size": 8}}
    text = json.dumps({"inputs": [tensor]}).encode()
    _refused(lies, text + bytes(8), headers={"Inference-Header-Content-Length": str(len(text))})


@pytest.mark.parametrize(
    "data",
    [
        *("[]", "[1]", "[1, 2, 3]", "[[1], [2, 3]]", '["1", "2"]', "[null, 1]", "[{}, 1]", "{}", '"12"', "12", "null"),
        *('["a", "b"]', "[[], []]", "[[[]]]"),
    ],
)
def test_values_that_do_not_fit(lies: Ways, data: str) -> None:
    text = json.dumps({"inputs": [_number(data="@")]}).replace('"@"', data)
    _refused(lies, text.encode())


@pytest.mark.parametrize(
    "size",
    [-1, 0, 1, 7, 9, 12, 16, 2**31, 2**32 + 8, 2**63, 2**64, 2**64 + 8, 10**30, 8.5, "8", None, True, [8], {}],
    ids=str,
)
def test_a_size_of_binary_data_that_lies(lies: Ways, size: object) -> None:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [tensor]}).encode()
    _refused(lies, text + bytes(8), headers={"Inference-Header-Content-Length": str(len(text))})


@pytest.mark.parametrize(
    "length", ["-1", "1", "999999", str(2**31), str(2**64), "9" * 400, "0x10", "", "1e2", "a", "10, 10"]
)
def test_a_length_of_the_json_that_lies(lies: Ways, length: str) -> None:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    text = json.dumps({"inputs": [tensor]}).encode()
    _refused(lies, text + bytes(8), headers={"Inference-Header-Content-Length": length})


def _elements(*lengths: int, content: bytes = b"") -> bytes:
    return b"".join(struct.pack("<I", length) for length in lengths) + content


_BYTES: Final = {
    "nothing": b"",
    "one byte": b"\0",
    "three bytes of a length": b"\1\0\0",
    "a length without content": _elements(1),
    "a length beyond the end": _elements(5, content=b"abcd"),
    "the largest length": _elements(2**32 - 1, content=b"abcd"),
    "a length of 2 GiB": _elements(2**31, content=b"abcd"),
    "a length short of the end": _elements(3, content=b"abcd"),
    "an element too few": _elements(4, content=b"abcd"),
    "an element too many": _elements(0, 0, 0),
    "the second lies": _elements(0, 9, content=b"abcd"),
    "the second wraps round": _elements(0, 2**32 - 8),
    "lengths in the other order": struct.pack(">I", 1) + b"a" + struct.pack(">I", 1) + b"b",
}


@pytest.mark.parametrize("content", _BYTES.values(), ids=_BYTES)
def test_lengths_of_elements_that_lie(lies: Ways, content: bytes) -> None:
    parameters = {"binary_data_size": len(content)}
    tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [2], "parameters": parameters}
    text = json.dumps({"inputs": [tensor]}).encode()
    _refused(lies, text + content, "text", {"Inference-Header-Content-Length": str(len(text))})
    _refused_over_grpc(lies, "text", "BYTES", [2], content)


@pytest.mark.parametrize(
    "place",
    [
        {"shared_memory_byte_size": 0},
        {"shared_memory_byte_size": 7},
        {"shared_memory_byte_size": 9},
        {"shared_memory_byte_size": _SIZE + 1},
        {"shared_memory_byte_size": 2**63},
        {"shared_memory_byte_size": 2**64 + 8},
        {"shared_memory_byte_size": -8},
        {"shared_memory_byte_size": "8"},
        {"shared_memory_offset": _SIZE},
        {"shared_memory_offset": _SIZE - 7},
        {"shared_memory_offset": -1},
        {"shared_memory_offset": -8},
        {"shared_memory_offset": 2**63},
        {"shared_memory_offset": 2**64 - 8},
        {"shared_memory_offset": 2**64},
        {"shared_memory_offset": 2**63, "shared_memory_byte_size": 2**63},
        {"shared_memory_offset": 1.5},
        {"shared_memory_offset": "0"},
        {"shared_memory_region": ""},
        {"shared_memory_region": "unknown"},
        {"shared_memory_region": "../region"},
        {"shared_memory_region": 1},
        {"shared_memory_region": None},
        {"binary_data_size": 8},
    ],
    ids=str,
)
def test_a_place_in_shared_memory_that_is_not_there(lies: Ways, place: dict[str, Any]) -> None:
    parameters = {"shared_memory_region": _REGION, "shared_memory_byte_size": 8} | place
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [2], "parameters": parameters}
    _refused(lies, json.dumps({"inputs": [tensor]}).encode())
    if "binary_data_size" not in place and place != {"shared_memory_byte_size": 9}:
        output = {"name": "OUTPUT0", "parameters": parameters}
        _refused(lies, json.dumps({"inputs": [_number()], "outputs": [output]}).encode())


@pytest.mark.parametrize(
    ("datatype", "shape", "content"),
    [
        ("FP32", [-1], bytes(8)),
        ("FP32", [-2, -1], bytes(8)),
        ("FP32", [-(2**63)], bytes(8)),
        ("FP32", [2**63 - 1], bytes(8)),
        ("FP32", [2**62 + 2], bytes(8)),
        ("FP32", [2**32, 2**32], b""),
        ("FP32", [2**62, 0], b""),
        ("FP32", [1] * 64 + [2], bytes(8)),
        ("FP32", [], bytes(4)),
        ("FP32", [2], b""),
        ("FP32", [2], bytes(7)),
        ("FP32", [2], bytes(12)),
        ("FP31", [2], bytes(8)),
        ("", [2], bytes(8)),
        ("INT32", [2], bytes(8)),
        ("BYTES", [2], bytes(8)),
    ],
)
def test_tensors_that_lie_over_grpc(lies: Ways, datatype: str, shape: list[int], content: bytes) -> None:
    _refused_over_grpc(lies, "numbers", datatype, shape, content)


def _refused_over_grpc(ways: Ways, model: str, datatype: str, shape: list[int], content: bytes) -> None:
    tensor = pb.ModelInferRequest.InferInputTensor(name="INPUT0", datatype=datatype, shape=shape)
    message = pb.ModelInferRequest(model_name=model, inputs=[tensor], raw_input_contents=[content])
    with grpc.insecure_channel(ways.grpc) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", pb.ModelInferRequest.SerializeToString)
        with pytest.raises(grpc.RpcError) as refused:
            call(message, timeout=60)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT, refused.value.details()
    assert refused.value.details()
