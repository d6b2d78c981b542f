"""A gRPC front end over the tests' core, and NVIDIA's own client for it."""

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton
from google.protobuf import json_format
from repoagent_server.grpc.frontend import GrpcFrontend
from repoagent_server.handlers.headers import Restrictions
from repoagent_server.handlers.inference import Served
from repoagent_server.handlers.shared_memory import NO_REGIONS, Regions
from repoagent_server.shared.grpc_options import GrpcOptions
from tritonclient.grpc import service_pb2_grpc

StartGrpc = Callable[..., int]


@pytest.fixture
def start_grpc(core: Any) -> Iterator[StartGrpc]:
    """Start a front end on a free port; arguments are those of ``GrpcOptions``. Gives the port."""
    started: list[GrpcFrontend] = []

    def start(
        *,
        allow_load_parameters: bool = False,
        restrictions: Restrictions | None = None,
        regions: Regions = NO_REGIONS,
        **options: Any,
    ) -> int:
        frontend = GrpcFrontend(
            Served(core, allow_load_parameters=allow_load_parameters, regions=regions),
            GrpcOptions(port=0, **options),
            restrictions=restrictions,
        )
        started.append(frontend)
        frontend.start()
        return frontend.bind()[1]

    yield start
    core.gate.set()
    for frontend in started:
        frontend.stop()


@pytest.fixture
def grpc_port(start_grpc: StartGrpc) -> int:
    return start_grpc()


@pytest.fixture
def client(grpc_port: int) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"127.0.0.1:{grpc_port}") as client:
        yield client


@pytest.fixture
def stub(grpc_port: int) -> Iterator[Any]:
    """The service as NVIDIA's package declares it."""
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


@pytest.fixture
def ask() -> Callable[[Any, Any], tuple[str, Any]]:
    """Call a method of ``stub``: the code, and the response as JSON or the text of the error."""

    def ask(method: Any, message: Any) -> tuple[str, Any]:
        try:
            return "OK", json_format.MessageToDict(method(message), preserving_proto_field_name=True)
        except grpc.RpcError as error:
            return error.code().name, error.details()

    return ask
