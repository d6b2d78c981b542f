"""A real core with small Python models, and front ends over it, for requests that mean harm."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from repoagent_server.grpc.frontend import GrpcFrontend
from repoagent_server.handlers.headers import Restrictions
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend
from repoagent_server.http.reader import Limits
from repoagent_server.shared.grpc_options import GrpcOptions

from repoagent.serving.core import ServingCore
from server_stub.tests.cores import every_model

_IDENTITY: Final = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in inputs]
"""


def write_identity(models: Path, name: str, data_type: str) -> None:
    """A model that gives back its one input, a vector."""
    (models / name / "1").mkdir(parents=True)
    (models / name / "1" / "model.py").write_text(_IDENTITY)
    tensor = f"data_type: TYPE_{data_type} dims: [-1]"
    (models / name / "config.pbtxt").write_text(
        f'backend: "python"\ninput {{ name: "INPUT0" {tensor} }}\noutput {{ name: "OUTPUT0" {tensor} }}\n'
    )


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingCore]:
    """A core that serves ``numbers`` (FP32) and ``text`` (BYTES)."""
    folder = tmp_path_factory.mktemp("hostile")
    write_identity(folder / "models", "numbers", "FP32")
    write_identity(folder / "models", "text", "STRING")
    with ServingCore(every_model(folder)) as running:
        yield running


@dataclass(frozen=True)
class Ways:
    """Where a core is reached."""

    http: httpx.Client
    address: tuple[str, int]
    grpc: str


StartWays = Callable[..., Ways]


@pytest.fixture(scope="module")
def start_ways(core: ServingCore) -> Iterator[StartWays]:
    """Start front ends over the core: arguments are those of ``Endpoint``, and ``more`` what both have in common."""
    with ExitStack() as stack:

        def start(
            address: str = "127.0.0.1",
            allowed_hosts: tuple[str, ...] = (),
            limits: Limits | None = None,
            metrics: Callable[[], str] | None = None,
            restrictions: Restrictions | None = None,
            **more: Any,
        ) -> Ways:
            endpoint = Endpoint(address, 0, limits=limits or Limits(), allowed_hosts=allowed_hosts)
            served = Served(core, **more)
            service = api_service(served, metrics=metrics, openai=True, restrictions=restrictions)
            http = HttpFrontend(endpoint, service)
            grpc = GrpcFrontend(served, GrpcOptions(port=0), restrictions=restrictions)
            for front in (http, grpc):
                stack.callback(front.stop)
                front.start()
            client = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{http.bind()[1]}", timeout=120))
            return Ways(client, http.bind(), f"127.0.0.1:{grpc.bind()[1]}")

        yield start


@pytest.fixture(scope="module")
def ways(start_ways: StartWays) -> Ways:
    """Front ends with everything as by default."""
    return start_ways()
