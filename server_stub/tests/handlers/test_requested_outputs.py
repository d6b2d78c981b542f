"""The classification extension: as a stock Triton answers it, through its own clients."""

import http.client
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from repoagent_server.handlers.requested_outputs import RequestedOutputs, classify
from tritonclient.utils import InferenceServerException

from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.request import InferResponse, OutputClasses
from repoagent.serving.requests.tensor import DataType, Tensor
from server_stub.tests.served import identity

if TYPE_CHECKING:
    from server_stub.tests.served import Served

#: Recorded from Triton 2.51.0 with the models of conftest.py.
_CASES: Final[list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "data" / "triton_2_51_classification.json").read_text()
)


def _ask(served: "Served", method: str, path: str, body: str) -> tuple[int, str, str | None]:
    connection = http.client.HTTPConnection(*served.http, timeout=60)
    try:
        connection.request(method, path, body.encode("latin-1"))
        response = connection.getresponse()
        text = response.read().decode("latin-1")
    finally:
        connection.close()
    return response.status, text, response.getheader("Inference-Header-Content-Length")


_TWICE: Final = ("twice", "twice plain")
"""Asked for twice: 2.73 refuses what 2.51 answered."""


@pytest.mark.parametrize("case", [c for c in _CASES if c["name"] in _TWICE], ids=lambda case: case["name"])
def test_an_output_asked_for_twice_is_refused(served: "Served", case: dict[str, Any]) -> None:
    status, text, _ = _ask(served, case["method"], case["path"], case["body"])
    assert status == 400
    assert "already exists in request" in text


@pytest.mark.parametrize(
    "case", [c for c in _CASES if c["name"] not in _TWICE], ids=lambda case: case["name"].replace(" ", "-")
)
def test_http_answers_as_triton_does(served: "Served", case: dict[str, Any]) -> None:
    status, text, header_length = _ask(served, case["method"], case["path"], case["body"])
    expected = case["response"]
    assert (status, header_length) == (case["status"], case["header_length"])
    assert text == expected if header_length else _read(text) == _read(expected)


def _read(text: str) -> Any:
    """The document. Triton writes an FP32 with the digits of a double, and a few parameters for ensembles."""
    document = json.loads(text, parse_float=np.float32)
    document.pop("parameters", None)
    return document


def _probabilities(module: Any, name: str = "INPUT0", rows: int = 1) -> Any:
    array = np.array([[0.1, 0.7, 0.05, 0.15], [4, 3, -1, 2.5e7]], np.float32)[:rows]
    tensor = module.InferInput(name, list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    return tensor


@pytest.mark.parametrize("client_module", [http_client, grpc_client], ids=["http", "grpc"])
@pytest.mark.parametrize(("model", "names"), [("probs", ("INPUT0", "OUTPUT0")), ("ens", ("X", "Y"))])
def test_the_clients_ask_by_class_count(
    request: pytest.FixtureRequest, client_module: Any, model: str, names: tuple[str, str]
) -> None:
    client = request.getfixturevalue("http" if client_module is http_client else "grpc")
    wanted = client_module.InferRequestedOutput(names[1], class_count=3)
    result = client.infer(model, [_probabilities(client_module, names[0], rows=2)], outputs=[wanted])
    assert result.as_numpy(names[1]).tolist() == [
        [b"0.700000:1:dog", b"0.150000:3:bird", b"0.100000:0:cat"],
        [b"25000000.000000:3:bird", b"4.000000:0:cat", b"3.000000:1:dog"],
    ]


def test_over_grpc_the_stream_classifies_as_well(grpc: Any) -> None:
    import queue

    results: queue.SimpleQueue[Any] = queue.SimpleQueue()
    grpc.start_stream(lambda result, error: results.put((result, error)))
    wanted = grpc_client.InferRequestedOutput("OUTPUT0", class_count=1)
    grpc.async_stream_infer("probs", [_probabilities(grpc_client)], outputs=[wanted])
    result, error = results.get(timeout=60)
    grpc.stop_stream()
    assert error is None
    assert result.as_numpy("OUTPUT0").tolist() == [[b"0.700000:1:dog"]]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        ({"int64_param": 0}, "invalid value for 'classification' parameter, expected >= 0"),
        ({"int64_param": -1}, "invalid value for 'classification' parameter, expected >= 0"),
        ({"string_param": "2"}, "invalid value type for 'classification' parameter, expected int64_param"),
        ({"bool_param": True}, "invalid value type for 'classification' parameter, expected int64_param"),
        ({"uint64_param": 2}, "invalid value type for 'classification' parameter, expected int64_param"),
    ],
)
def test_over_grpc_a_wrong_count_has_tritons_text(grpc: Any, count: dict[str, Any], text: str) -> None:
    from tritonclient.grpc import service_pb2

    message = service_pb2.ModelInferRequest(model_name="probs", raw_input_contents=[bytes(16)])
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
    parameters = message.outputs.add(name="OUTPUT0").parameters
    parameters["classification"].CopyFrom(service_pb2.InferParameter(**count))
    with pytest.raises(Exception, match=text) as raised:
        grpc._client_stub.ModelInfer(message)
    assert raised.value.code().name == "INVALID_ARGUMENT"  # type: ignore[attr-defined]  # an RpcError
    message.model_name = "nosuch"
    with pytest.raises(Exception, match="Request for unknown model: 'nosuch' is not found"):
        grpc._client_stub.ModelInfer(message)


@pytest.mark.parametrize(("model", "datatype"), [("half", "FP16"), ("truth", "BOOL"), ("str", "BYTES")])
def test_a_type_without_an_order_is_refused(http: Any, grpc: Any, model: str, datatype: str) -> None:
    dtypes = {"FP16": np.float16, "BOOL": np.bool_, "BYTES": np.object_}
    array: Any = np.array([b"1", b"2"], np.object_).astype(dtypes[datatype])
    for module, client, status in (
        (http_client, http, "400"),
        (grpc_client, grpc, "StatusCode.INVALID_ARGUMENT"),
    ):
        tensor = module.InferInput("INPUT0", [2], datatype)
        tensor.set_data_from_numpy(array)
        with pytest.raises(InferenceServerException) as raised:
            client.infer(model, [tensor], outputs=[module.InferRequestedOutput("OUTPUT0", class_count=1)])
        text = f"class result not available for output due to unsupported type '{datatype}'"
        assert (raised.value.status(), raised.value.message()) == (status, text)


def test_a_missing_file_of_labels_fails_the_load_with_tritons_text(served: "Served") -> None:
    identity(served.models, "unlabelled", "FP32", more='label_filename: "gone.txt"')
    status, text, _ = _ask(served, "POST", "/v2/repository/models/unlabelled/load", "")
    reason = "Internal: failed to open text file for read gone.txt: No such file or directory"
    assert (status, json.loads(text)["error"]) == (
        400,
        f"load failed for model 'unlabelled': version 1 is at UNAVAILABLE state: {reason};\n",
    )
    entry = next(entry for entry in served.core.index() if entry["name"] == "unlabelled")
    assert (entry["state"], entry["reason"]) == ("UNAVAILABLE", reason)


def test_the_extension_is_announced(http: Any) -> None:
    assert "classification" in http.get_server_metadata()["extensions"]


def _classified(data_type: DataType, values: Any, count: int, **labels: tuple[bytes, ...]) -> list[bytes]:
    array = np.asarray(values)
    return classify("OUT", Tensor(data_type, array), count, OutputClasses(False, labels)).array.tolist()  # type: ignore[no-any-return]


def test_what_is_no_number_comes_last_and_infinity_first() -> None:
    values = np.array([np.nan, -np.inf, 1, np.inf], np.float32)
    assert _classified(DataType.FP32, values, 4) == [b"inf:3", b"1.000000:2", b"nan:0", b"-inf:1"]


def test_the_ends_of_integer_types_are_in_order() -> None:
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    assert _classified(DataType.INT64, np.array([low, 0, high]), 3) == [b"%d:2" % high, b"0:1", b"%d:0" % low]
    assert _classified(DataType.UINT64, np.array([0, 2**64 - 1], np.uint64), 1) == [b"%d:1" % (2**64 - 1)]


def test_labels_are_bytes_and_may_be_too_few() -> None:
    assert _classified(DataType.UINT8, np.array([1, 3, 2], np.uint8), 3, OUT=(b"\xff", b"two")) == [
        b"3:1:two",
        b"2:2",
        b"1:0:\xff",
    ]


def test_nothing_has_no_classes() -> None:
    assert _classified(DataType.FP32, np.empty(0, np.float32), 5) == []
    with pytest.raises(InvalidArgumentError, match="unsupported type 'BF16'"):
        _classified(DataType.BF16, np.zeros(2, np.uint16), 1)


def test_more_elements_than_can_be_classified_are_refused() -> None:
    response = InferResponse("m", "1", outputs={"Y": Tensor.of(np.zeros(11, np.float32))})
    with pytest.raises(InvalidArgumentError, match=r"output 'Y' has 11 elements, and at most 10 can be classified"):
        RequestedOutputs({"Y": 1}, max_elements=10).fulfil(response, OutputClasses(batching=False))
