"""System shared memory through Triton's own clients, and answer by answer as a stock Triton gives it."""

import http.client
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException, serialize_byte_tensor, shared_memory

if TYPE_CHECKING:
    from server_stub.tests.conftest import Objects
    from server_stub.tests.served import Served

#: Recorded from Triton 2.51.0, in this order, with the models of conftest.py; "ra_" begins every key.
_CASES: Final[list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "data" / "triton_2_51_shared_memory.json").read_text()
)
_GRPC_CASES: Final[list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "data" / "triton_2_51_grpc_shared_memory.json").read_text()
)
_FOUR: Final = struct.pack("<4f", 1, 2, 3, 4)


@pytest.fixture(autouse=True)
def _no_regions(served: "Served") -> None:
    served.regions.unregister()


def _ask(served: "Served", method: str, path: str, body: str = "") -> tuple[int, str]:
    connection = http.client.HTTPConnection(*served.http, timeout=60)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_http_answers_as_triton_does(served: "Served", objects: "Objects") -> None:
    objects.make("in", 64, _FOUR)
    out = objects.make("out", 64)
    objects.make("page", 8192)
    objects.make("bytes", 64, struct.pack("<I2sI1s", 2, b"ab", 1, b"c"))
    directory = Path("/dev/shm") / f"{objects.prefix}dir"
    directory.mkdir()
    try:
        found = [
            (case["name"], *_ask(served, case["method"], case["path"], case["body"].replace("ra_", objects.prefix)))
            for case in _CASES
        ]
    finally:
        directory.rmdir()
    assert found == [(case["name"], case["status"], case["response"].replace("ra_", objects.prefix)) for case in _CASES]
    assert bytes(objects.read(out, np.uint8, [11])) == struct.pack("<I2sI1s", 2, b"ab", 1, b"c")
    assert objects.read(out, np.float32, [4], 32).tolist() == [1, 2, 3, 4]


#: Where Triton 2.51 answers otherwise than the source of later ones: input, output, status, end of the text.
_LATER: Final[dict[str, tuple[dict[str, Any], dict[str, Any] | None, int, str]]] = {
    "no-size": ({"shared_memory_region": "in"}, None, 400, "Expected 16, got 0"),
    "no-size-out": (
        {"shared_memory_region": "in", "shared_memory_byte_size": 16},
        {"shared_memory_region": "out"},
        500,
        "for output 'OUTPUT0' (0 bytes) should be at least 16 bytes to hold the results",
    ),
    "overflow": (
        {"shared_memory_region": "in", "shared_memory_byte_size": 2**64 - 32, "shared_memory_offset": 40},
        None,
        400,
        f"byte_size ({2**64 - 32}) + offset (40) exceeds maximum value ({2**64 - 1}) for region 'in'",
    ),
}


@pytest.mark.parametrize("case", _LATER.values(), ids=_LATER)
def test_sizes_that_do_not_fit_are_refused(
    served: "Served", objects: "Objects", case: tuple[dict[str, Any], dict[str, Any] | None, int, str]
) -> None:
    given, wanted, status, text = case
    for name in ("in", "out"):
        objects.make(name, 64, _FOUR)
        served.regions.register(name, objects.key(name), 0, 64)
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "parameters": given}
    document: dict[str, Any] = {"inputs": [tensor]}
    if wanted is not None:
        document["outputs"] = [{"name": "OUTPUT0", "parameters": wanted}]
    reply = _ask(served, "POST", "/v2/models/probs/infer", json.dumps(document))
    assert reply[0] == status
    assert json.loads(reply[1])["error"].endswith(text)


def test_nothing_can_be_in_shared_memory(served: "Served", objects: "Objects") -> None:
    objects.make("in", 64)
    served.regions.register("in", objects.key("in"), 0, 64)
    place = {"shared_memory_region": "in", "shared_memory_byte_size": 0}
    document = {
        "inputs": [{"name": "INPUT0", "datatype": "UINT8", "shape": [0], "parameters": place}],
        "outputs": [{"name": "OUTPUT0", "parameters": place}],
    }
    status, text = _ask(served, "POST", "/v2/models/u8/infer", json.dumps(document))
    assert status == 200
    assert json.loads(text)["outputs"] == [{"name": "OUTPUT0", "datatype": "UINT8", "shape": [0]}]


def _message(inputs: dict[str, Any], outputs: dict[str, Any] | None = None, *, raw: bytes | None = None) -> Any:
    """A request to ``probs`` with these parameters of its input and its output."""
    message = service_pb2.ModelInferRequest(model_name="probs")
    tensor = message.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
    _set(tensor.parameters, inputs)
    if outputs is not None:
        _set(message.outputs.add(name="OUTPUT0").parameters, outputs)
    if raw is not None:
        message.raw_input_contents.append(raw)
    return message


def _set(parameters: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        kind = "string_param" if isinstance(value, str) else "int64_param"
        setattr(parameters[name], kind, value)


_IN: Final = {"shared_memory_region": "in", "shared_memory_byte_size": 16}


@pytest.mark.parametrize("case", _GRPC_CASES, ids=lambda case: case["name"].replace(" ", "-"))
def test_grpc_refuses_as_triton_does(served: "Served", grpc: Any, objects: "Objects", case: dict[str, Any]) -> None:
    for name in ("in", "out"):
        objects.make(name, 64, _FOUR)
        served.regions.register(name, objects.key(name), 0, 64)
    raw = None if "shared_memory_region" in case["input"] else _FOUR
    assert _refusal(grpc, _message(case["input"], case["output"], raw=raw)) == (case["status"], case["text"])


def test_over_grpc_values_come_only_once(served: "Served", grpc: Any, objects: "Objects") -> None:
    objects.make("in", 64, _FOUR)
    served.regions.register("in", objects.key("in"), 0, 64)
    message = _message(_IN)
    message.inputs[0].contents.fp32_contents.extend([1, 2, 3, 4])
    assert _refusal(grpc, message) == (
        "INVALID_ARGUMENT",
        "unexpected 'content' provided when using shared memory for input tensor 'INPUT0' for model 'probs'",
    )


def _refusal(grpc: Any, message: Any) -> tuple[str, str]:
    with pytest.raises(Exception, match=r".") as raised:
        grpc._client_stub.ModelInfer(message)
    error: Any = raised.value  # an RpcError
    return error.code().name, error.details()


def test_grpc_registers_as_triton_does(grpc: Any, objects: "Objects") -> None:
    objects.make("in", 64)
    key = objects.key("in")

    def refused(call: Callable[[], object]) -> tuple[str, str]:
        with pytest.raises(InferenceServerException) as raised:
            call()
        return str(raised.value.status()).removeprefix("StatusCode."), str(raised.value.message())

    assert refused(lambda: grpc.get_system_shared_memory_status("in")) == (
        "NOT_FOUND",
        "Unable to find system shared memory region: 'in'",
    )
    assert refused(lambda: grpc.register_system_shared_memory("in", "", 64)) == (
        "INTERNAL",
        "Unable to open shared memory region: ''",
    )
    grpc.register_system_shared_memory("in", key, 64)
    assert refused(lambda: grpc.register_system_shared_memory("in", key, 64)) == (
        "ALREADY_EXISTS",
        "shared memory region 'in' already in manager",
    )
    (region,) = grpc.get_system_shared_memory_status("in").regions.values()
    assert (region.name, region.key, region.offset, region.byte_size) == ("in", key, 0, 64)
    grpc.unregister_system_shared_memory("in")
    assert not grpc.get_system_shared_memory_status().regions
    assert refused(lambda: grpc.register_cuda_shared_memory("x", b"eHh4eA==", 0, 8)) == (
        "INVALID_ARGUMENT",
        "failed to register shared memory region: invalid args",
    )
    assert refused(lambda: grpc.get_cuda_shared_memory_status("x")) == (
        "NOT_FOUND",
        "Unable to find cuda shared memory region: 'x'",
    )
    grpc.unregister_cuda_shared_memory("x")
    grpc.unregister_cuda_shared_memory()
    assert not grpc.get_cuda_shared_memory_status().regions


@pytest.fixture(params=["http", "grpc"])
def module_and_client(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """A client module and a client of it."""
    module = http_client if request.param == "http" else grpc_client
    return module, request.getfixturevalue(request.param)


def _place(tensor: Any, region: str, size: int, offset: int = 0) -> Any:
    tensor.set_shared_memory(region, size, offset)
    return tensor


def test_numbers_go_in_and_out_through_one_region(module_and_client: tuple[Any, Any], objects: "Objects") -> None:
    module, client = module_and_client
    handle = objects.make("both", 8192)
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    shared_memory.set_shared_memory_region(handle, [rows], offset=4096 + 100)
    client.register_system_shared_memory("both", objects.key("both"), 4096, offset=4096)
    result = client.infer(
        "probs",
        [_place(module.InferInput("INPUT0", [3, 4], "FP32"), "both", 48, 100)],
        outputs=[_place(module.InferRequestedOutput("OUTPUT0"), "both", 1000, 201)],
    )
    output = result.get_output("OUTPUT0")
    shape = output["shape"] if isinstance(output, dict) else output.shape
    assert list(shape) == [3, 4]
    assert np.array_equal(objects.read(handle, np.float32, [3, 4], 4096 + 201), rows)


def test_an_offset_within_a_page_is_taken(module_and_client: tuple[Any, Any], objects: "Objects") -> None:
    module, client = module_and_client
    objects.make("odd", 128, bytes(17) + _FOUR)
    client.register_system_shared_memory("odd", objects.key("odd"), 16, offset=17)
    result = client.infer("probs", [_place(module.InferInput("INPUT0", [1, 4], "FP32"), "odd", 16)])
    assert result.as_numpy("OUTPUT0").tolist() == [[1, 2, 3, 4]]


def test_text_goes_in_and_out(module_and_client: tuple[Any, Any], objects: "Objects") -> None:
    module, client = module_and_client
    texts = np.array([b"one", b"", "zw\u00f6lf".encode(), b"nul\0"], np.object_)
    content = serialize_byte_tensor(texts).item()
    objects.make("in", 256, content)
    out = objects.make("out", 256)
    for name in ("in", "out"):
        client.register_system_shared_memory(name, objects.key(name), 256)
    client.infer(
        "str",
        [_place(module.InferInput("INPUT0", [4], "BYTES"), "in", len(content))],
        outputs=[_place(module.InferRequestedOutput("OUTPUT0"), "out", 256)],
    )
    assert objects.read(out, np.object_, [4]).tolist() == texts.tolist()


def test_shared_memory_and_the_request_can_be_mixed(served: "Served", grpc: Any, objects: "Objects") -> None:
    objects.make("in", 64, _FOUR)
    grpc.register_system_shared_memory("in", objects.key("in"), 64)
    message = _message(_IN, raw=bytes(16))  # A raw content too many, as Triton takes it.
    assert grpc._client_stub.ModelInfer(message).raw_output_contents == [_FOUR]


@pytest.mark.parametrize("grow", [False, True], ids=["shrunk", "grown-again"])
def test_an_object_that_has_shrunk_is_not_touched(
    module_and_client: tuple[Any, Any], objects: "Objects", grow: bool
) -> None:
    module, client = module_and_client
    for name in ("in", "out"):
        objects.make(name, 8192, _FOUR)
        client.register_system_shared_memory(name, objects.key(name), 8192)
        os.truncate(f"/dev/shm{objects.key(name)}", 0)

    def ask(read: str, write: str) -> Any:
        given = _place(module.InferInput("INPUT0", [1, 4], "FP32"), read, 16)
        return client.infer("probs", [given], outputs=[_place(module.InferRequestedOutput("OUTPUT0"), write, 16)])

    if grow:
        for name in ("in", "out"):
            os.truncate(f"/dev/shm{objects.key(name)}", 8192)
        assert ask("in", "out")
        return
    with pytest.raises(InferenceServerException, match=r"region 'in' has shrunk: .* has 0 bytes now, 16 are"):
        ask("in", "out")
    os.truncate(f"/dev/shm{objects.key('in')}", 8192)
    with pytest.raises(InferenceServerException, match="region 'out' has shrunk"):
        ask("in", "out")
    assert client.is_server_live()


@pytest.mark.parametrize(
    "key", ["", "/", "//", ".", "/..", "a/b", "/a/../b", "x" * 256, "\u00e9" * 128], ids=lambda key: repr(key[:8])
)
def test_a_key_is_one_name(grpc: Any, key: str) -> None:
    with pytest.raises(InferenceServerException) as raised:
        grpc.register_system_shared_memory("in", key, 1)
    assert raised.value.message() == f"Unable to open shared memory region: '{key}'"


def test_reserved_keys_and_what_is_no_memory_are_refused(grpc: Any, objects: "Objects") -> None:
    with pytest.raises(InferenceServerException, match="contains the reserved prefix 'triton_python_backend_"):
        grpc.register_system_shared_memory("in", "/triton_python_backend_shm_region_1", 1)
    fifo = Path("/dev/shm") / f"{objects.prefix}fifo"
    os.mkfifo(fifo)
    link = Path("/dev/shm") / f"{objects.prefix}link"
    link.symlink_to("/etc/passwd")
    try:
        for path in (fifo, link):
            with pytest.raises(InferenceServerException, match=r"(Invalid|Unable to open) shared memory region"):
                grpc.register_system_shared_memory("in", path.name, 0)
    finally:
        fifo.unlink()
        link.unlink()
