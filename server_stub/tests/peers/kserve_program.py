"""A program of its own: this package's front ends and KServe's clients in one process, imported in either order.

Its first argument is "ours" or "kserve", whichever comes first; the second a model repository. It prints what the
clients got, as JSON. A process of its own because KServe's messages and those of tritonclient, which the tests hold,
have the same names, and only one of the two can be loaded.
"""

import asyncio
import importlib
import json
import sys
from typing import Any

import numpy as np

_OURS = ("repoagent_server.frontends", "repoagent_server.grpc.frontend", "repoagent.server")


def main(first: str, repository: str) -> None:
    for name in (*_OURS, "kserve") if first == "ours" else ("kserve", *_OURS):
        importlib.import_module(name)
    from repoagent_server import KServeGrpc, KServeHttp

    from repoagent.server import Server

    with (
        Server(model_repository=repository) as server,
        KServeHttp(server, KServeHttp.Options(port=0)) as http,
        KServeGrpc(server, KServeGrpc.Options(port=0)) as grpc,
    ):
        found = asyncio.run(_ask("http://{}:{}".format(*http.address), "{}:{}".format(*grpc.address)))
    print(json.dumps(found))


async def _ask(http: str, grpc: str) -> dict[str, Any]:
    from kserve import InferenceGRPCClient, InferenceRESTClient, RESTConfig

    async with (
        InferenceRESTClient(RESTConfig(protocol="v2", timeout=60, retries=0)) as rest,
        InferenceGRPCClient(grpc, timeout=60, retries=0) as rpc,
    ):
        return {
            "rest": await _over_rest(rest, http),
            "grpc": await _over_grpc(rpc),
        }


async def _over_rest(client: Any, url: str) -> dict[str, Any]:
    import httpx

    found: dict[str, Any] = {
        "live": await client.is_server_live(url),
        "ready": await client.is_server_ready(url),
        "model": await client.is_model_ready(url, "types"),
        "no model": await client.is_model_ready(url, "nosuch"),
    }
    for name, binary in (("json", False), ("binary", True)):
        headers: dict[str, str] = {}
        answer = await client.infer(
            url, _types(binary, outputs_binary=binary), model_name="types", response_headers=headers
        )
        found[name] = _values(answer)
        found[f"{name} header"] = "inference-header-content-length" in headers
    found["mixed"] = _values(await client.infer(url, _types(True), model_name="types"))
    plain = {"inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "BYTES", "data": ["a", "é"]}]}
    found["dict"] = (await client.infer(url, plain, model_name="texts")).outputs[0].data
    found["half"] = _values(await client.infer(url, _half(), model_name="half"))
    answer = await client.infer(url, _texts(), model_name="texts")
    found["texts"] = [answer.id, answer.model_name, answer.model_version, _text_values(answer), answer.parameters]
    for name, model in (("unknown", "nosuch"), ("wrong", "texts")):
        try:
            await client.infer(url, _types(True), model_name=model)
        except httpx.HTTPStatusError as error:
            found[name] = [error.response.status_code, str(error)]
    return found


async def _over_grpc(client: Any) -> dict[str, Any]:
    import grpc

    found: dict[str, Any] = {
        "live": await client.is_server_live(),
        "ready": await client.is_server_ready(),
        "model": await client.is_model_ready("types"),
        "raw": _values(await client.infer(_types(True))),
        "contents": _values(await client.infer(_types(False))),
        "half": _values(await client.infer(_half())),
    }
    answer = await client.infer(_texts())
    parameters = {name: value.int64_param for name, value in answer.parameters.items()}
    found["texts"] = [answer.id, answer.model_name, answer.model_version, _text_values(answer), parameters["param1"]]
    request = _types(True)
    for name, model in (("unknown", "nosuch"), ("wrong", "texts")):
        request.model_name = model
        try:
            await client.infer(request)
        except grpc.RpcError as error:
            found[name] = [error.code().name, error.details()]
    return found


def _types(binary: bool, *, outputs_binary: bool = False) -> Any:
    """One tensor of each type that has a JSON form, as identities."""
    from kserve import InferInput, InferRequest
    from kserve.protocol.infer_type import RequestedOutput

    inputs = []
    for index, kind in enumerate(("bool", "uint8", "int32", "int64", "uint64", "float32", "float64")):
        array = np.array([[0, 1, 3]]).astype(kind)
        names = {"bool": "BOOL", "float32": "FP32", "float64": "FP64"}
        tensor = InferInput(f"INPUT{index}", list(array.shape), names.get(kind, kind.upper()))
        tensor.set_data_from_numpy(array, binary_data=binary)
        inputs.append(tensor)
    outputs = [RequestedOutput(f"OUTPUT{index}", {"binary_data": outputs_binary}) for index in range(len(inputs))]
    return InferRequest("types", inputs, request_id="r1", request_outputs=outputs)


def _half() -> Any:
    from kserve import InferInput, InferRequest

    array = np.array([0.5, -2], np.float16)
    tensor = InferInput("INPUT0", [2], "FP16")
    tensor.set_data_from_numpy(array, binary_data=True)
    return InferRequest("half", [tensor], parameters={"binary_data_output": True})


def _texts() -> Any:
    from kserve import InferInput, InferRequest

    array = np.array([[b"a", "é".encode()]], object)
    tensor = InferInput("INPUT0", [1, 2], "BYTES")
    tensor.set_data_from_numpy(array, binary_data=True)
    return InferRequest("texts", [tensor], request_id="r2", parameters={"colour": "red", "count": 3})


def _values(answer: Any) -> list[Any]:
    return [[output.name, output.datatype, output.as_numpy().tolist()] for output in answer.outputs]


def _text_values(answer: Any) -> list[str]:
    values = answer.outputs[0].as_numpy().ravel().tolist()
    return [value.decode() if isinstance(value, bytes) else value for value in values]


if __name__ == "__main__":
    main(*sys.argv[1:])
