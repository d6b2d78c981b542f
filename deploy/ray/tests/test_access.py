"""Access control in the ingress: who may do what holds before a replica, or Ray's choice of one, hears of a request."""

import hashlib
from typing import Any

import grpc
import httpx
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from deploy.ray.tests.kit import PATIENCE, App, World, tensor

_KEYS = {"reader": "reader-0123456789abcdef0123456789abcdef", "owner": "owner-0123456789abcdef0123456789abcdef"}
_MOST_BYTES = 1 << 20
_SHOWS = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        texts = [request.parameters() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([text], object))]) for text in texts]
"""
_TENSORS = (
    'input { name: "IN" data_type: TYPE_INT32 dims: [1] } output { name: "OUT" data_type: TYPE_STRING dims: [1] }'
)


def _digest(name: str) -> str:
    return hashlib.sha256(_KEYS[name].encode()).hexdigest()


@pytest.fixture(scope="module")
def app(world: World) -> App:
    world.model("open", 1.0, {})
    world.model("secret", 2.0, {})
    world.python("shows", _SHOWS, _TENSORS)
    file = world.root / "access.toml"
    file.write_text(
        f'[clients.reader]\nkeys = ["sha256:{_digest("reader")}"]\nmodels = ["open", "shows"]\n'
        f'rights = ["infer", "metadata"]\n[clients.owner]\nkeys = ["sha256:{_digest("owner")}"]\nmodels = ["*"]\n'
        'rights = ["infer", "metadata", "manage"]\n'
    )
    file.chmod(0o600)
    ingress = {"num_cpus": 0, "runtime_env": {"env_vars": {"RAY_SERVE_GRPC_MAX_MESSAGE_SIZE": str(_MOST_BYTES)}}}
    return world.run(access=str(file), forward_headers=".*", ingress_replicas=2, ingress=ingress)


def _headers(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {_KEYS[name]}"}


def _clients(app: App) -> list[tuple[Any, Any]]:
    return [(tritonclient.http, app.http), (tritonclient.grpc, app.grpc)]


def test_a_client_may_use_its_models_and_no_others(app: App, world: World) -> None:
    for kind, connect in _clients(app):
        with connect() as client:
            answer = client.infer("open", [tensor(kind)], headers=_headers("reader"))
            assert answer.as_numpy("Y").tolist() == [[2.0, 3.0]]
            for headers in (_headers("reader"), None, {"authorization": "Bearer wrong"}):
                with pytest.raises(InferenceServerException):
                    client.infer("secret", [tensor(kind)], headers=headers)
            with pytest.raises(InferenceServerException):
                client.unload_model("open", headers=_headers("reader"))
    assert not [call for call in world.calls() if call[1] == "secret"], "nothing was loaded for those who may not"


def test_a_stream_is_checked_for_each_request(app: App) -> None:
    import queue

    got: queue.Queue[Any] = queue.Queue()
    with app.grpc() as client:
        client.start_stream(lambda result, error: got.put(error or result), headers=_headers("reader"))
        client.async_stream_infer("secret", [tensor(tritonclient.grpc)])
        assert isinstance(got.get(timeout=PATIENCE), InferenceServerException)
        client.async_stream_infer("open", [tensor(tritonclient.grpc)])
        assert not isinstance(got.get(timeout=PATIENCE), Exception)
        client.stop_stream()


def test_the_index_has_what_a_client_may_see(app: App) -> None:
    with app.http() as client:
        assert {entry["name"] for entry in client.get_model_repository_index(headers=_headers("reader"))} == {
            "open",
            "shows",
        }
        assert len(client.get_model_repository_index(headers=_headers("owner"))) == 3


def test_http_says_401_and_403(app: App) -> None:
    def status(headers: dict[str, str]) -> int:
        return httpx.get(f"{app.url}/v2/models/secret", headers=headers, timeout=PATIENCE).status_code

    assert (status({}), status(_headers("reader")), status(_headers("owner"))) == (401, 403, 200)


def test_no_model_gets_the_keys_of_its_clients(app: App) -> None:
    for kind, connect in _clients(app):
        asked = kind.InferInput("IN", [1], "INT32")
        asked.set_data_from_numpy(__import__("numpy").array([1], "int32"))
        with connect() as client:
            answer = client.infer("shows", [asked], headers={**_headers("reader"), "x-shown": "yes"})
            text = answer.as_numpy("OUT")[0].decode()
        assert "yes" in text, "headers do reach it"
        assert _KEYS["reader"] not in text


def test_a_message_beyond_the_limit_of_the_ingress_is_refused_before_it_is_read(app: App) -> None:
    """Ray reads a message before it calls the ingress, which checks the key: only its limit comes before that."""
    with grpc.insecure_channel(app.cluster.grpc) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        codes = []
        for size in (_MOST_BYTES // 2, 2 * _MOST_BYTES):
            with pytest.raises(grpc.RpcError) as refused:
                infer(bytes(size), timeout=PATIENCE)
            codes.append(refused.value.code())
    assert codes == [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED]
