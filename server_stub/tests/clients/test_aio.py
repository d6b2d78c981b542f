"""``tritonclient.http.aio`` and ``tritonclient.grpc.aio`` as they come from the package index, over every feature."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as over_grpc
import tritonclient.http.aio as over_http
from tritonclient.utils import InferenceServerException

from repoagent.server.logs import ServerLog

if TYPE_CHECKING:
    from server_stub.tests.conftest import Objects
    from server_stub.tests.served import Served


@dataclass(frozen=True)
class Wire:
    """One of the two clients: what it takes and returns in another form than the other."""

    triton: Any
    endpoint: str
    plain: Mapping[str, bool]
    """Has a call return plain data."""
    compression: tuple[str, ...]
    statuses: Mapping[str, str]
    handle: Any
    """One of CUDA's, as the client wants it."""

    async def show(self, call: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """What a call reports, as plain data; gRPC's messages with one field are that field."""
        found = await call(*arguments, **self.plain)
        return next(iter(found.values()), {}) if self.plain and len(found) < 2 else found

    def input(self, name: str, array: Any, datatype: str = "FP32") -> Any:
        tensor = self.triton.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        return tensor

    def fp32(self, *values: float) -> Any:
        return self.input("INPUT0", np.array([values], np.float32))

    def shared(self, kind: str, name: str, shape: list[int] | None, region: str, size: int, offset: int = 0) -> Any:
        """An input, or a requested output, in shared memory."""
        tensor = getattr(self.triton, kind)(*([name] if shape is None else [name, shape, "FP32"]))
        tensor.set_shared_memory(region, size, offset)
        return tensor

    async def refused(self, call: Awaitable[object]) -> tuple[str, str]:
        """The status, under gRPC's name, and the text."""
        with pytest.raises(InferenceServerException) as raised:
            await call
        return self.statuses[str(raised.value.status())], str(raised.value.message())


NAMES = {"404": "NOT_FOUND", "400": "INVALID_ARGUMENT", "500": "INTERNAL", "501": "UNIMPLEMENTED"}
HANDLE = base64.b64encode(bytes(64))
HTTP = Wire(
    over_http,
    "HTTP end point",
    {},
    ("request_compression_algorithm", "response_compression_algorithm"),
    NAMES,
    HANDLE.decode(),
)
GRPC = Wire(
    over_grpc,
    "ModelInfer RPC",
    {"as_json": True},
    ("compression_algorithm",),
    {f"StatusCode.{name}": name for name in NAMES.values()},
    HANDLE,
)
both = pytest.mark.parametrize("wire", [HTTP, GRPC], ids=["http", "grpc"])
grpc_only = pytest.mark.parametrize("wire", [GRPC], ids=["grpc"])


@pytest_asyncio.fixture
async def client(served: "Served", wire: Wire) -> AsyncIterator[Any]:
    address = served.grpc if wire is GRPC else "{}:{}".format(*served.http)
    async with wire.triton.InferenceServerClient(address) as client:
        yield client


def _id(result: Any) -> str:
    response = result.get_response()
    return str(response["id"] if isinstance(response, dict) else response.id)


def _setting(found: Any, name: str) -> list[Any]:
    value = found[name]
    value = next(iter(value.values())) if isinstance(value, dict) else value
    return value if isinstance(value, list) else [value]


@both
async def test_health_metadata_and_configuration(client: Any, wire: Wire) -> None:
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("probs", "1")
    assert not await client.is_model_ready("nosuch")
    metadata = await wire.show(client.get_server_metadata)
    assert metadata["name"] == "triton"
    assert {"classification", "system_shared_memory"} <= set(metadata["extensions"])
    (tensor,) = (await wire.show(client.get_model_metadata, "probs"))["inputs"]
    assert (tensor["name"], tensor["datatype"], [int(dim) for dim in tensor["shape"]]) == ("INPUT0", "FP32", [-1, -1])
    assert (await wire.show(client.get_model_config, "probs"))["max_batch_size"] == 8


@both
async def test_statistics(client: Any, wire: Wire) -> None:
    async def stats(*of: str) -> list[Any]:
        found = await client.get_inference_statistics(*of, **wire.plain)
        return list(found["model_stats"])

    before = await stats("u8", "1")
    await client.infer("u8", [wire.input("INPUT0", np.zeros(1, np.uint8), "UINT8")])
    after = await stats("u8", "1")
    counts = [int(one[0]["inference_stats"]["success"].get("count", 0)) for one in (before, after)]
    assert counts[1] == counts[0] + 1
    assert len(await stats()) > 5


@both
async def test_index_load_and_unload(client: Any, wire: Wire) -> None:
    async def state() -> Any:
        index = await wire.show(client.get_model_repository_index)
        return next(entry.get("state") for entry in index if entry["name"] == "f64")

    assert await state() == "READY"
    await client.unload_model("f64")
    assert await state() == "UNAVAILABLE"
    await client.load_model("f64")
    assert await state() == "READY"


@both
async def test_a_load_with_a_configuration_and_with_files(served: "Served", client: Any, wire: Wire) -> None:
    await client.load_model(
        "half", config='{"backend": "python", "max_batch_size": "0", "version_policy": {"all": {}}}'
    )
    assert (await wire.show(client.get_model_config, "half"))["version_policy"] == {"all": {}}
    await client.load_model("half")
    code = (served.models / "u8" / "1" / "model.py").read_bytes()
    config = (
        '{"backend": "python", "input": [{"name": "INPUT0", "data_type": "TYPE_INT8", "dims": [2]}], '
        '"output": [{"name": "OUTPUT0", "data_type": "TYPE_INT8", "dims": [2]}]}'
    )
    await client.load_model("sent", config=config, files={"file:1/model.py": code})
    result = await client.infer("sent", [wire.input("INPUT0", np.array([-1, 2], np.int8), "INT8")])
    assert result.as_numpy("OUTPUT0").tolist() == [-1, 2]
    await client.unload_model("sent")


@both
async def test_inference(client: Any, wire: Wire) -> None:
    wanted = wire.triton.InferRequestedOutput("OUTPUT0")
    result = await client.infer("probs", [wire.fp32(1.5, -2)], outputs=[wanted], request_id="r1")
    assert (_id(result), result.as_numpy("OUTPUT0").tolist()) == ("r1", [[1.5, -2.0]])
    texts = np.array([b"a", "\u00e9".encode(), b"\0", b""], np.object_)
    result = await client.infer("str", [wire.input("INPUT0", texts, "BYTES")])
    assert result.as_numpy("OUTPUT0").tolist() == texts.tolist()


@pytest.mark.parametrize("wire", [HTTP], ids=["http"])
@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
async def test_inference_in_json_and_in_binary(client: Any, wire: Wire, binary_in: bool, binary_out: bool) -> None:
    given = over_http.InferInput("INPUT0", [1, 2], "FP32")
    given.set_data_from_numpy(np.array([[1.5, -2]], np.float32), binary_data=binary_in)
    wanted = over_http.InferRequestedOutput("OUTPUT0", binary_data=binary_out)
    result = await client.infer("probs", [given], outputs=[wanted], request_id="r1")
    assert (_id(result), result.as_numpy("OUTPUT0").tolist()) == ("r1", [[1.5, -2.0]])


@both
async def test_many_requests_at_once(client: Any, wire: Wire) -> None:
    async def ask(number: int) -> float:
        result = await client.infer("probs", [wire.fp32(number)])
        return float(result.as_numpy("OUTPUT0")[0, 0])

    assert await asyncio.gather(*map(ask, range(32))) == list(range(32))


@both
async def test_classification(client: Any, wire: Wire) -> None:
    wanted = wire.triton.InferRequestedOutput("OUTPUT0", class_count=2)
    result = await client.infer("probs", [wire.fp32(0.125, 0.5, 0.25)], outputs=[wanted])
    assert result.as_numpy("OUTPUT0").tolist() == [[b"0.500000:1:dog", b"0.250000:2"]]


@both
async def test_shared_memory(client: Any, wire: Wire, objects: "Objects") -> None:
    async def regions() -> list[str]:
        found = await wire.show(client.get_system_shared_memory_status)
        return sorted(one if isinstance(one, str) else one["name"] for one in found)

    objects.make("in", 16, np.array([1, 2, 3, 4], np.float32).tobytes())
    out = objects.make("out", 16)
    for name in ("in", "out"):
        await client.register_system_shared_memory(name, objects.key(name), 16)
    given = wire.shared("InferInput", "INPUT0", [1, 4], "in", 16)
    await client.infer("probs", [given], outputs=[wire.shared("InferRequestedOutput", "OUTPUT0", None, "out", 16)])
    assert objects.read(out, np.float32, [4]).tolist() == [1, 2, 3, 4]
    assert await regions() == ["in", "out"]
    await client.unregister_system_shared_memory("in")
    assert await wire.refused(client.get_system_shared_memory_status("in")) == (
        "NOT_FOUND",
        "Unable to find system shared memory region: 'in'",
    )
    await client.unregister_system_shared_memory()
    assert await regions() == []


@both
async def test_cuda_shared_memory_without_a_gpu(client: Any, wire: Wire) -> None:
    await client.unregister_cuda_shared_memory()
    assert not await wire.show(client.get_cuda_shared_memory_status)
    assert await wire.refused(client.register_cuda_shared_memory("x", wire.handle, 0, 8)) == (
        "INVALID_ARGUMENT",
        "failed to register shared memory region: invalid args",
    )


def _steps(wire: Wire, model: str, sequence_id: int | str) -> list[dict[str, Any]]:
    """A sequence of 1, 2 and 7."""
    return [
        {
            "model_name": model,
            "inputs": [wire.input("INPUT", np.array([[value]], np.int32), "INT32")],
            "sequence_id": sequence_id,
            "sequence_start": value == 1,
            "sequence_end": value == 7,
            "request_id": str(value),
        }
        for value in (1, 2, 7)
    ]


sequences = pytest.mark.parametrize(
    ("model", "sequence_id", "total"), [("simple_dyna_sequence", 7, 17), ("simple_string_dyna_sequence", "9x", 19)]
)


@both
@sequences
async def test_sequences(client: Any, wire: Wire, model: str, sequence_id: int | str, total: int) -> None:
    results = [await client.infer(**step) for step in _steps(wire, model, sequence_id)]
    assert [int(result.as_numpy("OUTPUT")[0, 0]) for result in results] == [1, 3, total]


@both
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_compression(client: Any, wire: Wire, coding: str) -> None:
    values = np.arange(5000, dtype=np.float32).reshape(1, -1)
    result = await client.infer("probs", [wire.input("INPUT0", values)], **dict.fromkeys(wire.compression, coding))
    assert np.array_equal(result.as_numpy("OUTPUT0"), values)


@both
async def test_log_settings(client: Any, wire: Wire, log: ServerLog) -> None:
    changed = await wire.show(client.update_log_settings, {"log_verbose_level": 1})
    assert _setting(changed, "log_verbose_level") == [1]
    assert await wire.show(client.get_log_settings) == changed


@both
async def test_trace_settings(client: Any, wire: Wire) -> None:
    asked = {"trace_level": ["TIMESTAMPS"], "trace_rate": "5"}
    changed = await wire.show(client.update_trace_settings, "u8", asked)
    assert _setting(changed, "trace_rate") == ["5"]
    assert await wire.show(client.get_trace_settings, "u8") == changed
    assert _setting(await wire.show(client.get_trace_settings), "trace_level") == ["OFF"]
    cleared = await wire.show(client.update_trace_settings, "u8", {"trace_level": None, "trace_rate": None})
    assert _setting(cleared, "trace_level") == ["OFF"]


@both
@pytest.mark.parametrize(
    ("model", "version", "tensor", "status", "text"),
    [
        ("nosuch", "", None, "NOT_FOUND", "Request for unknown model: 'nosuch' is not found"),
        ("probs", "7", None, "NOT_FOUND", "Request for unknown model: 'probs' version 7 is not found"),
        ("probs", "", ("X", np.zeros((1, 1), np.float32)), "INVALID_ARGUMENT", "unexpected inference input 'X'"),
        ("u8", "", None, "INVALID_ARGUMENT", "data-type is 'FP32', but model 'u8' expects 'UINT8'"),
        (
            "square_int32",
            "",
            ("IN", np.zeros(1, np.int32), "INT32"),
            "UNIMPLEMENTED",
            "ENDPOINT doesn't support models with decoupled transaction policy",
        ),
    ],
    ids=["model", "version", "input", "type", "decoupled"],
)
async def test_errors(
    client: Any, wire: Wire, model: str, version: str, tensor: tuple[Any, ...] | None, status: str, text: str
) -> None:
    given = wire.fp32(1) if tensor is None else wire.input(*tensor)
    found = await wire.refused(client.infer(model, [given], model_version=version))
    assert (found[0], text.replace("ENDPOINT", wire.endpoint) in found[1]) == (status, True)


@both
async def test_repository_errors(client: Any, wire: Wire) -> None:
    status, text = await wire.refused(client.load_model("nosuch"))
    assert status == "INTERNAL"
    assert text.startswith("failed to load 'nosuch', failed to poll from model repository")
    assert (await wire.refused(client.get_model_config("nosuch")))[0] == "NOT_FOUND"
    assert (await wire.refused(client.get_inference_statistics("nosuch")))[0] == "INVALID_ARGUMENT"


# What only gRPC has.


@grpc_only
async def test_a_version_that_is_no_number(client: Any, wire: Wire) -> None:
    status, text = await wire.refused(client.infer("probs", [wire.fp32(1)], model_version="x"))
    assert (status, "specified version string 'x'" in text) == ("INVALID_ARGUMENT", True)


async def _stream(client: Any, requests: Iterable[dict[str, Any]]) -> list[tuple[Any, Any]]:
    async def ask() -> AsyncIterator[dict[str, Any]]:
        for request in requests:
            yield request

    return [answer async for answer in client.stream_infer(ask())]


@grpc_only
@sequences
async def test_sequences_over_a_stream(client: Any, wire: Wire, model: str, sequence_id: int | str, total: int) -> None:
    answers = await _stream(client, _steps(wire, model, sequence_id))
    assert [error for _, error in answers] == [None] * 3
    assert {_id(result): int(result.as_numpy("OUTPUT")[0, 0]) for result, _ in answers} == {"1": 1, "2": 3, "7": total}


@grpc_only
async def test_a_decoupled_model_over_a_stream(client: Any, wire: Wire) -> None:
    inputs = [wire.input("IN", np.array([3], np.int32), "INT32")]
    answers = await _stream(client, [{"model_name": "square_int32", "inputs": inputs}])
    assert [error for _, error in answers] == [None] * 3
    assert [result.as_numpy("OUT").tolist() for result, _ in answers] == [[3]] * 3


@grpc_only
async def test_an_error_does_not_end_a_stream(client: Any, wire: Wire) -> None:
    classes = [over_grpc.InferRequestedOutput("OUTPUT0", class_count=1)]
    requests = [
        {"model_name": "nosuch", "inputs": [wire.fp32(1)], "request_id": "bad"},
        {"model_name": "probs", "inputs": [wire.fp32(1, 3)], "outputs": classes, "request_id": "good"},
    ]
    answers = await _stream(client, requests)
    (error,) = [error for _, error in answers if error is not None]
    (result,) = [result for result, error in answers if error is None]
    assert "Request for unknown model: 'nosuch' is not found" in str(error)
    assert result.as_numpy("OUTPUT0").tolist() == [[b"3.000000:1:dog"]]


@grpc_only
async def test_shared_memory_over_a_stream(client: Any, wire: Wire, objects: "Objects") -> None:
    handle = objects.make("both", 64, np.array([1, 2, 3, 4], np.float32).tobytes())
    await client.register_system_shared_memory("both", objects.key("both"), 64)
    requests = [
        {
            "model_name": "probs",
            "inputs": [wire.shared("InferInput", "INPUT0", [1, 2], "both", 8, 8 * number)],
            "outputs": [wire.shared("InferRequestedOutput", "OUTPUT0", None, "both", 8, 48 - 16 * number)],
            "request_id": str(number),
        }
        for number in range(2)
    ]
    answers = await _stream(client, requests)
    await client.unregister_system_shared_memory()
    assert sorted(_id(result) for result, error in answers if error is None) == ["0", "1"]
    assert [list(result.get_response().raw_output_contents) for result, _ in answers] == [[b""]] * 2
    assert objects.read(handle, np.float32, [2], 48).tolist() == [1, 2]
    assert objects.read(handle, np.float32, [2], 32).tolist() == [3, 4]


@grpc_only
async def test_a_stream_that_is_given_up(client: Any, wire: Wire) -> None:
    asked = asyncio.Event()

    async def ask() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "probs", "inputs": [wire.fp32(1)]}
        asked.set()
        await asyncio.Event().wait()

    answers = client.stream_infer(ask())
    result, error = await anext(answers)
    assert (result.as_numpy("OUTPUT0").tolist(), error) == ([[1.0]], None)
    await asked.wait()
    answers.cancel()
    assert await client.is_server_live()
