"""``tritonclient.http.aio`` as it comes from the package index, over every feature of the server."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.http.aio as triton
from tritonclient.utils import InferenceServerException

from repoagent.server.logs import ServerLog

if TYPE_CHECKING:
    from server_stub.tests.conftest import Objects
    from server_stub.tests.served import Served


@pytest_asyncio.fixture
async def client(served: "Served") -> AsyncIterator[Any]:
    async with triton.InferenceServerClient("{}:{}".format(*served.http)) as client:
        yield client


def _input(name: str, array: Any, datatype: str = "FP32", *, binary: bool = True) -> Any:
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def _fp32(*values: float, binary: bool = True) -> Any:
    return _input("INPUT0", np.array([values], np.float32), binary=binary)


async def _refused(call: Awaitable[object]) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as raised:
        await call
    return str(raised.value.status()), str(raised.value.message())


async def test_health_metadata_and_configuration(client: Any) -> None:
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("probs", "1")
    assert not await client.is_model_ready("nosuch")
    metadata = await client.get_server_metadata()
    assert {"classification", "system_shared_memory"} <= set(metadata["extensions"])
    assert (await client.get_model_metadata("probs"))["inputs"] == [
        {"name": "INPUT0", "datatype": "FP32", "shape": [-1, -1]}
    ]
    assert (await client.get_model_config("probs"))["max_batch_size"] == 8


async def test_statistics(client: Any) -> None:
    before = await client.get_inference_statistics("u8", "1")
    await client.infer("u8", [_input("INPUT0", np.zeros(1, np.uint8), "UINT8")])
    after = await client.get_inference_statistics("u8", "1")
    counts = [int(it["model_stats"][0]["inference_stats"]["success"]["count"]) for it in (before, after)]
    assert counts[1] == counts[0] + 1
    assert len((await client.get_inference_statistics())["model_stats"]) > 5


async def test_index_load_and_unload(client: Any) -> None:
    async def state() -> Any:
        index = await client.get_model_repository_index()
        return next(entry.get("state") for entry in index if entry["name"] == "f64")

    assert await state() == "READY"
    await client.unload_model("f64")
    assert await state() == "UNAVAILABLE"
    await client.load_model("f64")
    assert await state() == "READY"


async def test_a_load_with_a_configuration_and_with_files(served: "Served", client: Any) -> None:
    await client.load_model(
        "half", config='{"backend": "python", "max_batch_size": "0", "version_policy": {"all": {}}}'
    )
    assert (await client.get_model_config("half"))["version_policy"] == {"all": {}}
    await client.load_model("half")
    code = (served.models / "u8" / "1" / "model.py").read_bytes()
    config = (
        '{"backend": "python", "input": [{"name": "INPUT0", "data_type": "TYPE_INT8", "dims": [2]}], '
        '"output": [{"name": "OUTPUT0", "data_type": "TYPE_INT8", "dims": [2]}]}'
    )
    await client.load_model("sent", config=config, files={"file:1/model.py": code})
    values = np.array([-1, 2], np.int8)
    result = await client.infer("sent", [_input("INPUT0", values, "INT8")])
    assert result.as_numpy("OUTPUT0").tolist() == [-1, 2]
    await client.unload_model("sent")


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
async def test_inference_in_json_and_in_binary(client: Any, binary_in: bool, binary_out: bool) -> None:
    wanted = triton.InferRequestedOutput("OUTPUT0", binary_data=binary_out)
    result = await client.infer("probs", [_fp32(1.5, -2, binary=binary_in)], outputs=[wanted], request_id="r1")
    assert (result.get_response()["id"], result.as_numpy("OUTPUT0").tolist()) == ("r1", [[1.5, -2.0]])


async def test_text(client: Any) -> None:
    texts = np.array([b"a", "\u00e9".encode(), b"\0", b""], np.object_)
    result = await client.infer("str", [_input("INPUT0", texts, "BYTES")])
    assert result.as_numpy("OUTPUT0").tolist() == texts.tolist()


async def test_many_requests_at_once(client: Any) -> None:
    async def ask(number: int) -> float:
        result = await client.infer("probs", [_fp32(number)])
        return float(result.as_numpy("OUTPUT0")[0, 0])

    assert await asyncio.gather(*map(ask, range(32))) == list(range(32))


async def test_classification(client: Any) -> None:
    wanted = triton.InferRequestedOutput("OUTPUT0", class_count=2)
    result = await client.infer("probs", [_fp32(0.125, 0.5, 0.25)], outputs=[wanted])
    assert result.as_numpy("OUTPUT0").tolist() == [[b"0.500000:1:dog", b"0.250000:2"]]


async def test_shared_memory(client: Any, objects: "Objects") -> None:
    objects.make("in", 16, np.array([1, 2, 3, 4], np.float32).tobytes())
    out = objects.make("out", 16)
    for name in ("in", "out"):
        await client.register_system_shared_memory(name, objects.key(name), 16)
    given = triton.InferInput("INPUT0", [1, 4], "FP32")
    given.set_shared_memory("in", 16)
    wanted = triton.InferRequestedOutput("OUTPUT0")
    wanted.set_shared_memory("out", 16)
    await client.infer("probs", [given], outputs=[wanted])
    assert objects.read(out, np.float32, [4]).tolist() == [1, 2, 3, 4]
    assert [it["name"] for it in await client.get_system_shared_memory_status()] == ["in", "out"]
    await client.unregister_system_shared_memory("in")
    assert await _refused(client.get_system_shared_memory_status("in")) == (
        "404",
        "Unable to find system shared memory region: 'in'",
    )
    await client.unregister_system_shared_memory()
    assert await client.get_system_shared_memory_status() == []


async def test_cuda_shared_memory_without_a_gpu(client: Any) -> None:
    await client.unregister_cuda_shared_memory()
    assert await client.get_cuda_shared_memory_status() == []
    handle = base64.b64encode(bytes(64)).decode()
    assert await _refused(client.register_cuda_shared_memory("x", handle, 0, 8)) == (
        "400",
        "failed to register shared memory region: invalid args",
    )


@pytest.mark.parametrize(
    ("model", "sequence_id", "total"), [("simple_dyna_sequence", 7, 17), ("simple_string_dyna_sequence", "9x", 19)]
)
async def test_sequences(client: Any, model: str, sequence_id: int | str, total: int) -> None:
    sums = []
    for number, value in enumerate((1, 2, 7)):
        result = await client.infer(
            model,
            [_input("INPUT", np.array([[value]], np.int32), "INT32")],
            sequence_id=sequence_id,
            sequence_start=number == 0,
            sequence_end=number == 2,
        )
        sums.append(int(result.as_numpy("OUTPUT")[0, 0]))
    assert sums == [1, 3, total]


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_compression_both_ways(client: Any, coding: str) -> None:
    values = np.arange(5000, dtype=np.float32).reshape(1, -1)
    result = await client.infer(
        "probs",
        [_input("INPUT0", values)],
        request_compression_algorithm=coding,
        response_compression_algorithm=coding,
    )
    assert np.array_equal(result.as_numpy("OUTPUT0"), values)


async def test_log_settings(client: Any, log: ServerLog) -> None:
    changed = await client.update_log_settings({"log_verbose_level": 1})
    assert changed["log_verbose_level"] == 1
    assert await client.get_log_settings() == changed


async def test_trace_settings(client: Any) -> None:
    changed = await client.update_trace_settings("u8", {"trace_level": ["TIMESTAMPS"], "trace_rate": "5"})
    assert changed["trace_rate"] == "5"
    assert await client.get_trace_settings("u8") == changed
    assert (await client.get_trace_settings())["trace_level"] == ["OFF"]
    cleared = await client.update_trace_settings("u8", {"trace_level": None, "trace_rate": None})
    assert cleared["trace_level"] == ["OFF"]


@pytest.mark.parametrize(
    ("model", "version", "tensor", "status", "text"),
    [
        ("nosuch", "", _fp32(1), "404", "Request for unknown model: 'nosuch' is not found"),
        ("probs", "7", _fp32(1), "404", "Request for unknown model: 'probs' version 7 is not found"),
        (
            "probs",
            "",
            _input("X", np.zeros((1, 1), np.float32)),
            "400",
            "unexpected inference input 'X' for model 'probs'",
        ),
        ("u8", "", _fp32(1), "400", "inference input 'INPUT0' data-type is 'FP32', but model 'u8' expects 'UINT8'"),
        (
            "square_int32",
            "",
            _input("IN", np.zeros(1, np.int32), "INT32"),
            "501",
            "HTTP end point doesn't support models with decoupled transaction policy",
        ),
    ],
    ids=["model", "version", "input", "type", "decoupled"],
)
async def test_errors(client: Any, model: str, version: str, tensor: Any, status: str, text: str) -> None:
    found = await _refused(client.infer(model, [tensor], model_version=version))
    assert (found[0], text in found[1]) == (status, True)


async def test_repository_errors(client: Any) -> None:
    status, text = await _refused(client.load_model("nosuch"))
    assert (status, text.startswith("failed to load 'nosuch', failed to poll from model repository")) == ("500", True)
    assert (await _refused(client.get_model_config("nosuch")))[0] == "404"
    assert (await _refused(client.get_inference_statistics("nosuch")))[0] == "400"
