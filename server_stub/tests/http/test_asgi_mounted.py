"""The API mounted in a FastAPI and a Starlette application on uvicorn, over a running server, with stock clients."""

import json
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
import uvicorn
from fastapi import FastAPI
from repoagent_server import asgi_app
from starlette.applications import Starlette
from tritonclient.utils import InferenceServerException

from repoagent.server import Server

_ECHO = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor)]) for tensor in tensors]
"""

#: One response, then another when somebody writes to the pipe ("go"), or none but the end when the client has left.
_STEPS = """
import time
from pathlib import Path
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            pipe = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0].decode()
            self.send(sender, b"first")
            if pipe.endswith("cancel"):
                while not sender.is_cancelled():
                    time.sleep(0.001)
                Path(pipe).write_text("cancelled")
            else:
                self.send(sender, Path(pipe).read_bytes())
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def send(self, sender, text):
        import numpy as np
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([text], object))]))
"""


def _write(repository: Path, name: str, code: str, kind: str, config: str = "") -> None:
    file = repository / name / "1" / "model.py"
    file.parent.mkdir(parents=True)
    file.write_text(code)
    tensors = (
        f'input {{ name: "IN" data_type: {kind} dims: [-1] }} output {{ name: "OUT" data_type: {kind} dims: [-1] }}'
    )
    (repository / name / "config.pbtxt").write_text(f'backend: "python" {tensors} {config}')


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    _write(repository, "echo", _ECHO, "TYPE_FP32")
    _write(repository, "steps", _STEPS, "TYPE_STRING", "model_transaction_policy { decoupled: true }")
    with Server(model_repository=str(repository)) as server:
        yield server


def _fastapi(lifespan: Any, models: Any) -> Any:
    app = FastAPI(lifespan=lifespan)

    @app.get("/own")
    def own() -> dict[str, str]:
        return {"of": "the host"}

    app.mount("/models api/v", models)
    return app


def _starlette(lifespan: Any, models: Any) -> Any:
    app = Starlette(lifespan=lifespan)
    app.mount("/models api/v", models)
    return app


@contextmanager
def running(app: Any) -> Iterator[str]:
    """The application on uvicorn; ``host:port``. What comes before it is up waits in the socket."""
    listener = socket.create_server(("127.0.0.1", 0))
    program = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
    thread = threading.Thread(target=program.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        program.should_exit = True
        thread.join(60)
        listener.close()
    assert not thread.is_alive()


_Make = Callable[[Any, Any], Any]


@pytest.fixture(scope="module", params=[_fastapi, _starlette])
def prefix(request: pytest.FixtureRequest, server: Server) -> Iterator[str]:
    """``host:port/PREFIX`` of the mounted API."""
    make: _Make = request.param
    seen: list[str] = []

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        seen.append("up")
        yield
        seen.append("down")

    with asgi_app(server) as models, running(make(lifespan, models)) as address:
        yield f"{address}/models%20api/v"
    assert seen == ["up", "down"], "the lifespan of the host is its own"


@pytest.mark.slow
def test_tritons_client_takes_the_prefix_as_part_of_the_address(prefix: str) -> None:
    with triton.InferenceServerClient(prefix) as client:
        assert client.is_server_ready()
        assert client.is_model_ready("echo")
        assert client.get_model_metadata("echo")["inputs"] == [{"name": "IN", "datatype": "FP32", "shape": [-1]}]
        for binary in (True, False):
            tensor = triton.InferInput("IN", [3], "FP32")
            tensor.set_data_from_numpy(np.array([1, 2, 3], np.float32), binary_data=binary)
            outputs = [triton.InferRequestedOutput("OUT", binary_data=binary)]
            answer = client.infer("echo", [tensor], outputs=outputs, request_compression_algorithm="gzip")
            assert answer.as_numpy("OUT").tolist() == [1, 2, 3]
        with pytest.raises(InferenceServerException, match="Request for unknown model: 'nosuch' is not found") as error:
            client.get_model_metadata("nosuch")
        assert error.value.status() == "404"


def test_what_is_beside_the_mount_point_is_the_hosts(prefix: str) -> None:
    host = prefix.partition("/")[0]
    assert httpx.get(f"http://{prefix}/metrics").text.startswith("# HELP nv_inference_request_success")
    assert httpx.get(f"http://{host}/v2").status_code == 404
    assert httpx.get(f"http://{prefix}/nothing").status_code == 404


def test_a_stream_is_not_held_back(prefix: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    url = f"http://{prefix}/v2/models/steps/generate_stream"
    with httpx.stream("POST", url, json={"IN": str(tmp_path / "pipe")}, timeout=60) as response:
        events = (json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line)
        assert next(events)["OUT"] == "first"
        (tmp_path / "pipe").write_text("second")  # what the model waits for before it answers again
        assert [event["OUT"] for event in events] == ["second"]
    assert response.headers["content-type"].startswith("text/event-stream")


def test_a_client_that_leaves_has_its_request_cancelled(prefix: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "cancel")
    url = f"http://{prefix}/v2/models/steps/generate_stream"
    with httpx.stream("POST", url, json={"IN": str(tmp_path / "cancel")}, timeout=60) as response:
        assert "first" in next(response.iter_lines())
    assert (tmp_path / "cancel").read_text() == "cancelled"


def test_the_application_by_itself_answers_the_lifespan(server: Server) -> None:
    with running(asgi_app(server)) as address, triton.InferenceServerClient(address) as client:
        assert client.is_model_ready("echo")
