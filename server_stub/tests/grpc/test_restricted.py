"""Protocols that need a header."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc
import pytest
import tritonclient.grpc as triton
from grpc_health.v1 import health_pb2, health_pb2_grpc
from repoagent_server.grpc.access import PROTOCOLS
from repoagent_server.grpc.service import METHODS
from repoagent_server.handlers.headers import Api, Restriction
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

_KEYS: Final = dict(zip(Api, ["h", "m", "i", "s", "c", "r", "st", "t", "l"], strict=True))
_HEALTH: Final = "triton-grpc-protocol-h"
_SECRET: Final = "a=b,c:d"


@pytest.fixture
def port(start_grpc: Callable[..., int]) -> int:
    """Of a server whose every protocol is restricted."""
    restrictions = {api: Restriction(f"triton-grpc-protocol-{key}", _SECRET.encode()) for api, key in _KEYS.items()}
    return start_grpc(restrictions=restrictions)


@pytest.fixture
def channel(port: int) -> Iterator[Any]:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel


def test_every_method_belongs_to_a_protocol() -> None:
    assert set(PROTOCOLS) == {*METHODS, "ModelStreamInfer"}


def test_every_method_is_refused_as_by_triton(channel: Any, ask: Any, recorded: dict[str, Any]) -> None:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    for case in recorded["grpc restricted"]:
        name = case["method"]
        if name == "ModelStreamInfer":
            with pytest.raises(grpc.RpcError) as raised:
                next(stub.ModelStreamInfer(iter([service_pb2.ModelInferRequest(model_name="ident")])))
            answer = (raised.value.code().name, raised.value.details())
        else:
            answer = ask(getattr(stub, name), getattr(service_pb2, f"{name}Request")())
        assert answer == (case["code"], case["response"]), case


def test_the_health_service_is_restricted_with_health(channel: Any) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    with pytest.raises(grpc.RpcError, match=f"expecting header '{_HEALTH}'"):
        stub.Check(health_pb2.HealthCheckRequest())
    with pytest.raises(grpc.RpcError, match=f"expecting header '{_HEALTH}'"):
        next(stub.Watch(health_pb2.HealthCheckRequest()))
    answer = stub.Check(health_pb2.HealthCheckRequest(), metadata=[(_HEALTH, _SECRET)])
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_tritons_client_gets_through_with_the_header(port: int) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
        assert client.is_server_ready(headers={_HEALTH: _SECRET})
        with pytest.raises(InferenceServerException, match="This protocol is restricted, expecting header"):
            client.is_server_ready(headers={_HEALTH: _SECRET + "x"})
        with pytest.raises(InferenceServerException, match="This protocol is restricted, expecting header"):
            client.get_log_settings(headers={_HEALTH: _SECRET})


def test_of_several_values_the_first_counts(channel: Any) -> None:
    live = service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerLive
    assert live(service_pb2.ServerLiveRequest(), metadata=[(_HEALTH, _SECRET), (_HEALTH, "x")]).live
    with pytest.raises(grpc.RpcError, match="restricted"):
        live(service_pb2.ServerLiveRequest(), metadata=[(_HEALTH, "x"), (_HEALTH, _SECRET)])


def test_the_rest_stays_open(start_grpc: Callable[..., int]) -> None:
    port = start_grpc(restrictions={Api.LOGGING: Restriction("triton-grpc-protocol-key", b"value")})
    with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
        assert client.is_server_ready()
        with pytest.raises(InferenceServerException, match="expecting header 'triton-grpc-protocol-key'"):
            client.get_log_settings()
