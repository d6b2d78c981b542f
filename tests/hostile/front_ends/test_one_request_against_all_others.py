"""T8: no single request keeps the others waiting; what is too much is refused by count before it is worked on."""

import functools
import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Final

import grpc
import httpx
import pytest
from repoagent_server.codec import long_json
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.service import SERVICE
from repoagent_server.http.connection import HttpConnection

from tests.extent import in_full

pytestmark = pytest.mark.slow

_COUNT: Final = 220_000
_SMALL: Final = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
_INPUT: Final = json.dumps(_SMALL["inputs"][0])
_INFER: Final = "/v2/models/numbers/infer"
_TOO_MUCH: Final = {
    "parameters": (_INFER, f'{{"inputs":[{_INPUT}],"parameters":{{MEMBERS}}}}'),
    "outputs": (_INFER, f'{{"inputs":[{_INPUT}],"outputs":[OUTPUTS]}}'),
    "inputs": (_INFER, '{"inputs":[OBJECTS]}'),
    "generate": ("/v2/models/text/generate", "{MEMBERS}"),
    "generate_stream": ("/v2/models/text/generate_stream", "{MEMBERS}"),
    "table": ("/v2/models/text/invocations", '{"inputs":[[1]],"params":{MEMBERS}}'),
    "index": ("/v2/repository/index", "{MEMBERS}"),
    "load": ("/v2/repository/models/numbers/load", '{"parameters":{MEMBERS}}'),
    "log": ("/v2/logging", "{MEMBERS}"),
    "trace": ("/v2/trace/setting", "{MEMBERS}"),
}


@functools.cache
def _members() -> str:
    return ",".join(f'"p{number}":{number}' for number in range(_COUNT))


def _written(body: str) -> str:
    """``body`` with many of what it names."""
    for name, one in (("OBJECTS", "{}"), ("OUTPUTS", '{"name":1}')):
        body = body.replace(name, ",".join([one] * _COUNT))
    return body.replace("MEMBERS", _members())


@pytest.mark.parametrize(
    ("together", "kind"),
    [
        *((1, kind) for kind in _TOO_MUCH),
        *((4, kind) for kind in in_full(list(_TOO_MUCH), otherwise=["load"])),
    ],
)
def test_too_many_members_are_refused_while_others_are_answered(ways: Any, kind: str, together: int) -> None:
    path, body = _TOO_MUCH[kind][0], _written(_TOO_MUCH[kind][1])
    with ThreadPoolExecutor(together) as pool, httpx.Client(base_url=ways.http.base_url, timeout=120) as other:
        asked = [pool.submit(ways.http.post, path, content=body) for _ in range(together)]
        while True:
            done = all(future.done() for future in asked)
            assert other.get("/v2/health/live").status_code == 200
            assert other.post(_INFER, json=_SMALL).status_code == 200
            if done:
                break
    for future in asked:
        answer = future.result()
        assert answer.status_code == 400, answer.text
        limit = "send fewer rows, or tensors" if kind == "table" else "members beside the values of tensors"
        assert limit in answer.json()["error"]


@pytest.mark.parametrize("kind", ["inputs", "outputs", "parameters"])
def test_a_short_request_of_too_many_is_refused_by_count_with_the_flag(ways: Any, kind: str) -> None:
    many: Any = {f"p{number}": 1 for number in range(10_001)} if kind == "parameters" else [{"name": "x"}] * 10_001
    answer = ways.http.post(_INFER, json={**_SMALL, kind: many})
    assert answer.status_code == 400
    assert f"10001 {kind}" in answer.text
    assert "--limit-request-" in answer.text


_TEXTS: Final = 2_000_001
_LONG: Final = (16 << 20) + 1


@pytest.mark.parametrize(
    ("path", "data", "flag"),
    [
        ("infer", b",".join([b'"a"'] * _TEXTS), "--limit-request-texts"),
        ("infer", b'"%b"' % (b"x" * _LONG), "--limit-json-text-bytes"),
        ("generate", b'"%b"' % (b"x" * _LONG), "--limit-json-text-bytes"),
    ],
    ids=["texts", "a text", "a text to generate of"],
)
def test_too_many_texts_and_too_long_ones_are_refused_in_json(ways: Any, path: str, data: bytes, flag: str) -> None:
    count = _TEXTS if flag == "--limit-request-texts" else 1
    head = b'{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[%d],"data":[' % count
    body = b'{"INPUT0":%b}' % data if path == "generate" else head + data + b"]}]}"
    answer = ways.http.post(f"/v2/models/text/{path}", content=body)
    assert answer.status_code == 400, answer.text
    assert flag in answer.json()["error"]


def test_too_many_texts_are_refused_in_binary_and_over_grpc(ways: Any) -> None:
    """F20: difference 35."""
    raw = bytes(4 * _TEXTS)
    tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [_TEXTS], "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [tensor]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    answer = ways.http.post("/v2/models/text/infer", content=head + raw, headers=headers)
    assert answer.status_code == 400, answer.text
    assert "--limit-request-texts" in answer.json()["error"]
    asked = pb.ModelInferRequest(model_name="text", raw_input_contents=[raw])
    asked.inputs.add(name="INPUT0", datatype="BYTES", shape=[_TEXTS])
    with grpc.insecure_channel(ways.grpc) as channel:
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer", pb.ModelInferRequest.SerializeToString, bytes)
        with pytest.raises(grpc.RpcError) as raised:
            call(asked, timeout=60)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "--limit-request-texts" in raised.value.details()


@pytest.mark.parametrize("path", [_INFER, "/v2/models/numbers/generate"])
def test_a_long_request_is_read_while_others_are_answered(
    ways: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go_on = threading.Event(), threading.Event()
    cut: Callable[..., Any] = long_json._cut

    def slowly(window: bytes, depth: int) -> Any:
        reading.set()
        assert go_on.wait(120)
        return cut(window, depth)

    monkeypatch.setattr(long_json, "_cut", slowly)
    values = [0.25] * 100_000
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [len(values)], "data": values}
    body = {"inputs": [tensor]} if path == _INFER else {"INPUT0": values}
    with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=ways.http.base_url, timeout=120) as other:
        asked = pool.submit(ways.http.post, path, json=body)
        assert reading.wait(120)
        for _ in range(3):
            assert other.get("/v2/health/live").status_code == 200
            assert other.post(_INFER, json=_SMALL).status_code == 200
        assert not asked.done()
        go_on.set()
        answer = asked.result()
    assert answer.status_code == 200
    document = answer.json()
    assert (document["outputs"][0]["data"] if path == _INFER else document["OUTPUT0"]) == values


def test_a_client_that_goes_ends_the_reading_of_its_request(ways: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    windows: list[int] = []
    reading, go_on = threading.Event(), threading.Event()
    cut: Callable[..., Any] = long_json._cut

    def slowly(window: bytes, depth: int) -> Any:
        if len(window) > long_json._SHORT:
            windows.append(len(window))
        reading.set()
        assert go_on.wait(120)
        return cut(window, depth)

    lost: SimpleQueue[str] = SimpleQueue()
    connection_lost = HttpConnection.connection_lost

    def note_loss(connection: HttpConnection, exc: Exception | None) -> None:
        connection_lost(connection, exc)
        lost.put(connection._address)

    monkeypatch.setattr(long_json, "_cut", slowly)
    monkeypatch.setattr(HttpConnection, "connection_lost", note_loss)
    values = [0.25] * 1_000_000
    body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [len(values)], "data": values}]})
    head = f"POST {_INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(ways.address, timeout=120) as client:
        client.sendall(head.encode() + body.encode())
        assert reading.wait(120)
        address = "{}:{}".format(*client.getsockname())
    while lost.get(timeout=120) != address:  # Others of earlier tests may end as well.
        pass
    go_on.set()
    longer = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [80_000], "data": [1.5] * 80_000}]})
    assert ways.http.post(_INFER, content=longer).status_code == 200  # read after the one that was given up
    assert len(windows) <= 4, windows


@pytest.mark.parametrize("kind", ["FP32", "BYTES"])
@pytest.mark.parametrize("binary", [False, True])
def test_long_values_come_back_as_they_were(ways: Any, kind: str, binary: bool) -> None:
    model, count = ("numbers", 200_000) if kind == "FP32" else ("text", 200_000)
    values: list[Any] = (
        [index / 8 for index in range(count)] if kind == "FP32" else [f"é{index}" for index in range(count)]
    )
    tensor = {"name": "INPUT0", "datatype": kind, "shape": [count], "data": values}
    body = {"inputs": [tensor], "parameters": {"binary_data_output": binary}}
    answer = ways.http.post(f"/v2/models/{model}/infer", json=body)
    assert answer.status_code == 200, answer.text
    if not binary:
        assert answer.json()["outputs"][0]["data"] == values
        return
    head = int(answer.headers["Inference-Header-Content-Length"])
    again: dict[str, Any] = {"name": "INPUT0", "datatype": kind, "shape": [count]}
    again["parameters"] = {"binary_data_size": len(answer.content) - head}
    text = json.dumps({"inputs": [again]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    answer = ways.http.post(f"/v2/models/{model}/infer", content=text + answer.content[head:], headers=headers)
    assert answer.json()["outputs"][0]["data"] == values


def _message(**more: Any) -> pb.ModelInferRequest:
    tensor = pb.ModelInferRequest.InferInputTensor(name="INPUT0", datatype="FP32", shape=[2])
    tensor.contents.fp32_contents.extend([1, 2])
    return pb.ModelInferRequest(model_name="numbers", inputs=[tensor], **more)


def _grpc_bodies() -> dict[str, bytes]:
    texts = pb.ModelInferRequest.InferInputTensor(name="INPUT0", datatype="BYTES", shape=[1_000_001])
    texts.contents.bytes_contents.extend([b""] * 1_000_001)
    return {
        "inputs, outputs and parameters": _message().SerializeToString() + b"\x32\x00" * _COUNT,
        "elements in typed contents": pb.ModelInferRequest(model_name="text", inputs=[texts]).SerializeToString(),
    }


@pytest.mark.parametrize("what", ["inputs, outputs and parameters", "elements in typed contents"])
@pytest.mark.parametrize("stream", [False, True])
def test_grpc_counts_fields_before_it_parses(
    ways: Any, what: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = _grpc_bodies()[what]
    path = "/inference.GRPCInferenceService/"
    with grpc.insecure_channel(ways.grpc) as channel:
        if stream:
            call = channel.stream_stream(path + "ModelStreamInfer", bytes, pb.ModelStreamInferResponse.FromString)
            (answer,) = call(iter([body]), timeout=120)
            text = answer.error_message
        else:
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(path + "ModelInfer", bytes, pb.ModelInferResponse.FromString)(body, timeout=120)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            text = refused.value.details()
    assert what in text
    assert "--limit-" in text


def test_grpc_counts_the_parameters_of_a_load(ways: Any) -> None:
    body = b"\x1a\x00" * _COUNT
    with grpc.insecure_channel(ways.grpc) as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelLoad", bytes)(body, timeout=120)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("raw", [False, True])
def test_large_grpc_requests_within_the_limits_are_answered(ways: Any, raw: bool) -> None:
    values = [f"text {number}".encode() for number in range(100_000)]
    tensor = pb.ModelInferRequest.InferInputTensor(name="INPUT0", datatype="BYTES", shape=[len(values)])
    request = pb.ModelInferRequest(model_name="text", inputs=[tensor])
    packed = b"".join(len(value).to_bytes(4, "little") + value for value in values)
    if raw:
        request.raw_input_contents.append(packed)
    else:
        request.inputs[0].contents.bytes_contents.extend(values)
    with grpc.insecure_channel(ways.grpc, [("grpc.max_receive_message_length", -1)]) as channel:
        path = "/inference.GRPCInferenceService/ModelInfer"
        call = channel.unary_unary(path, pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString)
        assert call(request, timeout=120).raw_output_contents[0] == packed
