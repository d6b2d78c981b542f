"""Loads that take long keep nobody else from being answered."""

import gzip
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import tritonclient.grpc as triton
from repoagent_server.grpc.frontend import GrpcFrontend
from repoagent_server.handlers.inference import Served
from repoagent_server.http.frontend import HttpFrontend
from repoagent_server.shared.grpc_options import GrpcOptions

_LOADS = 48
_INFER = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[1]}]}'


@pytest.fixture
def held(core: Any) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Has a load called many times at once; returns when all of them are at work, which goes on until the test ends."""
    begun, gate = threading.Semaphore(0), threading.Event()

    def load(name: str, **_: object) -> None:
        begun.release()
        assert gate.wait(60)

    with ThreadPoolExecutor(_LOADS) as clients:

        def begin(call: Callable[[], object]) -> None:
            core.load = load
            for _ in range(_LOADS):
                clients.submit(call)
            for _ in range(_LOADS):
                assert begun.acquire(timeout=60)

        yield begin
        gate.set()


@pytest.mark.slow
def test_over_http(frontend: HttpFrontend, client: httpx.Client, held: Any) -> None:
    host, port = frontend.bind()
    held(lambda: httpx.post(f"http://{host}:{port}/v2/repository/models/ident/load", timeout=60))
    assert client.post("/v2/repository/index").status_code == 200
    assert client.post("/v2/repository/models/ident/unload").status_code == 200
    headers = {"Content-Encoding": "gzip"}
    assert client.post("/v2/models/ident/infer", content=gzip.compress(_INFER), headers=headers).status_code == 200


@pytest.fixture
def grpc_port(core: Any) -> Iterator[int]:
    front = GrpcFrontend(Served(core), GrpcOptions(port=0))
    front.start()
    yield front.bind()[1]
    front.stop()


def test_over_grpc(grpc_port: int, held: Any) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{grpc_port}") as client:
        held(lambda: client.load_model("ident", client_timeout=60))
        assert client.is_server_live(client_timeout=60)
        assert client.get_model_repository_index(client_timeout=60).models
        client.unload_model("ident", client_timeout=60)
