"""``tritonclient.grpc.aio`` as it comes from the package index, over every feature of the server."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from repoagent.server.logs import ServerLog

if TYPE_CHECKING:
    from server_stub.tests.conftest import Objects
    from server_stub.tests.served import Served


@pytest_asyncio.fixture
async def client(served: "Served") -> AsyncIterator[Any]:
    async with triton.InferenceServerClient(served.grpc) as client:
        yield client


def _input(name: str, array: Any, datatype: str = "FP32") -> Any:
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def _fp32(*values: float) -> Any:
    return _input("INPUT0", np.array([values], np.float32))


async def _refused(call: Awaitable[object]) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as raised:
        await call
    return str(raised.value.status()).removeprefix("StatusCode."), str(raised.value.message())


async def test_health_metadata_and_configuration(client: Any) -> None:
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("probs", "1")
    assert not await client.is_model_ready("nosuch")
    assert {"classification", "system_shared_memory"} <= set((await client.get_server_metadata()).extensions)
    (tensor,) = (await client.get_model_metadata("probs")).inputs
    assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("INPUT0", "FP32", [-1, -1])
    assert (await client.get_model_config("probs")).config.max_batch_size == 8


async def test_statistics(client: Any) -> None:
    before = await client.get_inference_statistics("u8", "1")
    await client.infer("u8", [_input("INPUT0", np.zeros(1, np.uint8), "UINT8")])
    after = await client.get_inference_statistics("u8", "1")
    counts = [it.model_stats[0].inference_stats.success.count for it in (before, after)]
    assert counts[1] == counts[0] + 1
    assert len((await client.get_inference_statistics()).model_stats) > 5


async def test_index_load_and_unload(client: Any) -> None:
    async def state() -> str:
        index = await client.get_model_repository_index()
        return next(str(entry.state) for entry in index.models if entry.name == "f64")

    assert await state() == "READY"
    await client.unload_model("f64")
    assert await state() == "UNAVAILABLE"
    await client.load_model("f64")
    assert await state() == "READY"


async def test_a_load_with_a_configuration_and_with_files(served: "Served", client: Any) -> None:
    await client.load_model(
        "half", config='{"backend": "python", "max_batch_size": "0", "version_policy": {"all": {}}}'
    )
    assert (await client.get_model_config("half")).config.version_policy.HasField("all")
    await client.load_model("half")
    code = (served.models / "u8" / "1" / "model.py").read_bytes()
    config = (
        '{"backend": "python", "input": [{"name": "INPUT0", "data_type": "TYPE_INT8", "dims": [2]}], '
        '"output": [{"name": "OUTPUT0", "data_type": "TYPE_INT8", "dims": [2]}]}'
    )
    await client.load_model("sent", config=config, files={"file:1/model.py": code})
    result = await client.infer("sent", [_input("INPUT0", np.array([-1, 2], np.int8), "INT8")])
    assert result.as_numpy("OUTPUT0").tolist() == [-1, 2]
    await client.unload_model("sent")


async def test_inference(client: Any) -> None:
    wanted = triton.InferRequestedOutput("OUTPUT0")
    result = await client.infer("probs", [_fp32(1.5, -2)], outputs=[wanted], request_id="r1")
    assert (result.get_response().id, result.as_numpy("OUTPUT0").tolist()) == ("r1", [[1.5, -2.0]])
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
    assert sorted((await client.get_system_shared_memory_status()).regions) == ["in", "out"]
    await client.unregister_system_shared_memory("in")
    assert await _refused(client.get_system_shared_memory_status("in")) == (
        "NOT_FOUND",
        "Unable to find system shared memory region: 'in'",
    )
    await client.unregister_system_shared_memory()
    assert not (await client.get_system_shared_memory_status()).regions


async def test_cuda_shared_memory_without_a_gpu(client: Any) -> None:
    await client.unregister_cuda_shared_memory()
    assert not (await client.get_cuda_shared_memory_status()).regions
    assert await _refused(client.register_cuda_shared_memory("x", base64.b64encode(bytes(64)), 0, 8)) == (
        "INVALID_ARGUMENT",
        "failed to register shared memory region: invalid args",
    )


def _steps(model: str, sequence_id: int | str) -> list[dict[str, Any]]:
    """A sequence of 1, 2 and 7."""
    return [
        {
            "model_name": model,
            "inputs": [_input("INPUT", np.array([[value]], np.int32), "INT32")],
            "sequence_id": sequence_id,
            "sequence_start": value == 1,
            "sequence_end": value == 7,
            "request_id": str(value),
        }
        for value in (1, 2, 7)
    ]


_SEQUENCES = [("simple_dyna_sequence", 7, 17), ("simple_string_dyna_sequence", "9x", 19)]


@pytest.mark.parametrize(("model", "sequence_id", "total"), _SEQUENCES)
async def test_sequences(client: Any, model: str, sequence_id: int | str, total: int) -> None:
    results = [await client.infer(**step) for step in _steps(model, sequence_id)]
    assert [int(result.as_numpy("OUTPUT")[0, 0]) for result in results] == [1, 3, total]


async def _stream(client: Any, requests: Iterable[dict[str, Any]]) -> list[tuple[Any, Any]]:
    async def ask() -> AsyncIterator[dict[str, Any]]:
        for request in requests:
            yield request

    return [answer async for answer in client.stream_infer(ask())]


@pytest.mark.parametrize(("model", "sequence_id", "total"), _SEQUENCES)
async def test_sequences_over_a_stream(client: Any, model: str, sequence_id: int | str, total: int) -> None:
    answers = await _stream(client, _steps(model, sequence_id))
    assert [error for _, error in answers] == [None] * 3
    found = {result.get_response().id: int(result.as_numpy("OUTPUT")[0, 0]) for result, _ in answers}
    assert found == {"1": 1, "2": 3, "7": total}


async def test_a_decoupled_model_over_a_stream(client: Any) -> None:
    inputs = [_input("IN", np.array([3], np.int32), "INT32")]
    answers = await _stream(client, [{"model_name": "square_int32", "inputs": inputs}])
    assert [error for _, error in answers] == [None] * 3
    assert [result.as_numpy("OUT").tolist() for result, _ in answers] == [[3]] * 3


async def test_an_error_does_not_end_a_stream(client: Any) -> None:
    requests = [
        {"model_name": "nosuch", "inputs": [_fp32(1)], "request_id": "bad"},
        {
            "model_name": "probs",
            "inputs": [_fp32(1, 3)],
            "outputs": [triton.InferRequestedOutput("OUTPUT0", class_count=1)],
            "request_id": "good",
        },
    ]
    answers = await _stream(client, requests)
    (error,) = [error for _, error in answers if error is not None]
    (result,) = [result for result, error in answers if error is None]
    assert "Request for unknown model: 'nosuch' is not found" in str(error)
    assert result.as_numpy("OUTPUT0").tolist() == [[b"3.000000:1:dog"]]


async def test_shared_memory_over_a_stream(client: Any, objects: "Objects") -> None:
    handle = objects.make("both", 64, np.array([1, 2, 3, 4], np.float32).tobytes())
    await client.register_system_shared_memory("both", objects.key("both"), 64)
    requests = []
    for number in range(2):
        given = triton.InferInput("INPUT0", [1, 2], "FP32")
        given.set_shared_memory("both", 8, 8 * number)
        wanted = triton.InferRequestedOutput("OUTPUT0")
        wanted.set_shared_memory("both", 8, 48 - 16 * number)
        requests.append({"model_name": "probs", "inputs": [given], "outputs": [wanted], "request_id": str(number)})
    answers = await _stream(client, requests)
    await client.unregister_system_shared_memory()
    assert sorted(result.get_response().id for result, error in answers if error is None) == ["0", "1"]
    assert [list(result.get_response().raw_output_contents) for result, _ in answers] == [[b""]] * 2
    assert objects.read(handle, np.float32, [2], 48).tolist() == [1, 2]
    assert objects.read(handle, np.float32, [2], 32).tolist() == [3, 4]


async def test_a_stream_that_is_given_up(client: Any) -> None:
    asked = asyncio.Event()

    async def ask() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "probs", "inputs": [_fp32(1)]}
        asked.set()
        await asyncio.Event().wait()

    answers = client.stream_infer(ask())
    result, error = await anext(answers)
    assert (result.as_numpy("OUTPUT0").tolist(), error) == ([[1.0]], None)
    await asked.wait()
    answers.cancel()
    assert await client.is_server_live()


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_compression(client: Any, coding: str) -> None:
    values = np.arange(5000, dtype=np.float32).reshape(1, -1)
    result = await client.infer("probs", [_input("INPUT0", values)], compression_algorithm=coding)
    assert np.array_equal(result.as_numpy("OUTPUT0"), values)


async def test_log_settings(client: Any, log: ServerLog) -> None:
    changed = await client.update_log_settings({"log_verbose_level": 1})
    assert changed.settings["log_verbose_level"].uint32_param == 1
    assert await client.get_log_settings() == changed


async def test_trace_settings(client: Any) -> None:
    changed = await client.update_trace_settings("u8", {"trace_level": ["TIMESTAMPS"], "trace_rate": "5"})
    assert list(changed.settings["trace_rate"].value) == ["5"]
    assert await client.get_trace_settings("u8") == changed
    assert list((await client.get_trace_settings()).settings["trace_level"].value) == ["OFF"]
    cleared = await client.update_trace_settings("u8", {"trace_level": None, "trace_rate": None})
    assert list(cleared.settings["trace_level"].value) == ["OFF"]


@pytest.mark.parametrize(
    ("model", "version", "tensor", "status", "text"),
    [
        ("nosuch", "", _fp32(1), "NOT_FOUND", "Request for unknown model: 'nosuch' is not found"),
        ("probs", "7", _fp32(1), "NOT_FOUND", "Request for unknown model: 'probs' version 7 is not found"),
        ("probs", "x", _fp32(1), "INVALID_ARGUMENT", "failed to get model version from specified version string 'x'"),
        ("probs", "", _input("X", np.zeros((1, 1), np.float32)), "INVALID_ARGUMENT", "unexpected inference input 'X'"),
        ("u8", "", _fp32(1), "INVALID_ARGUMENT", "data-type is 'FP32', but model 'u8' expects 'UINT8'"),
        (
            "square_int32",
            "",
            _input("IN", np.zeros(1, np.int32), "INT32"),
            "UNIMPLEMENTED",
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
        ),
    ],
    ids=["model", "version", "version-text", "input", "type", "decoupled"],
)
async def test_errors(client: Any, model: str, version: str, tensor: Any, status: str, text: str) -> None:
    found = await _refused(client.infer(model, [tensor], model_version=version))
    assert (found[0], text in found[1]) == (status, True)


async def test_repository_errors(client: Any) -> None:
    status, text = await _refused(client.load_model("nosuch"))
    assert (status, text.startswith("failed to load 'nosuch', failed to poll from model repository")) == (
        "INTERNAL",
        True,
    )
    assert (await _refused(client.get_model_config("nosuch")))[0] == "NOT_FOUND"
    assert (await _refused(client.get_inference_statistics("nosuch")))[0] == "INVALID_ARGUMENT"
