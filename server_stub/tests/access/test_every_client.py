"""Every route and every method, times every kind of client, through sockets."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from repoagent_server.access import Right, Scope
from repoagent_server.grpc.access import NEEDS
from repoagent_server.grpc.service import METHODS, SERVICE
from repoagent_server.http.router import Route
from repoagent_server.shared.grpc_options import TRANSPORTS
from tritonclient.grpc import service_pb2, service_pb2_grpc

from server_stub.tests.access.conftest import Guarded
from server_stub.tests.access.routes import BODY, CASES, SESSION, path_of

MODEL: Final = "fraud-us"
UNKNOWN: Final = ("none", "wrong", "cut", "expired", "unsigned", "stranger", "twice")
"""Kinds that are no client."""
LIMITED: Final = ("lacking", "other")
"""Clients: without the right, and with all rights for another model alone."""
ADMITTED: Final = ("key", "api key", "token")


def _headers(kind: str, right: Right | None, issuer: Any) -> list[tuple[str, str]]:
    """What a client of this kind sends to an operation that needs ``right``."""
    stranger = type(issuer)(issuer.folder)
    kinds: dict[str, Callable[[], list[tuple[str, str]]]] = {
        "none": list,
        "wrong": lambda: [("authorization", "Bearer someone-key")],
        "cut": lambda: [("authorization", "Bearer root-ke")],
        "expired": lambda: [("authorization", f"Bearer {issuer.token(seconds=-5)}")],
        "unsigned": lambda: [("authorization", f"Bearer {issuer.token().rpartition('.')[0]}.")],
        "stranger": lambda: [("authorization", f"Bearer {stranger.token()}")],
        "twice": lambda: [("authorization", "Bearer root-key"), ("x-api-key", "root-key")],
        "lacking": lambda: [("authorization", f"Bearer without-{right or Right.INFER}-key")],
        "other": lambda: [("x-api-key", "eu-key")],
        "key": lambda: [("authorization", "Bearer root-key")],
        "api key": lambda: [("x-api-key", "root-key")],
        "token": lambda: [("authorization", f"Bearer {issuer.token()}")],
    }
    return kinds[kind]()


def _expected(kind: str, scope: Scope) -> int:
    """The status of HTTP; 200 for any that is neither 401 nor 403."""
    if scope is Scope.OPEN:
        return 200
    if kind in UNKNOWN:
        return 401
    return 403 if kind in LIMITED and scope in (Scope.MODEL, Scope.BODY, Scope.SERVER) else 200


# HTTP


def _case(case: tuple[Route, str]) -> str:
    return f"{case[1]} {path_of(case[0].pattern, 'M')}"


def _ask(client: httpx.Client, route: Route, method: str, kind: str, issuer: Any, model: str) -> httpx.Response:
    need = route.needs
    assert need is not None
    headers = _headers(kind, need.right, issuer)
    if method == "GET":
        return client.get(path_of(route.pattern, model), headers=headers)
    return client.post(path_of(route.pattern, model), headers=headers, json={"model": model, **BODY})


@pytest.fixture(scope="module")
def http(guarded: Guarded) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=guarded.http) as client:
        yield client


@pytest.mark.parametrize("case", [*CASES, *SESSION], ids=_case)
def test_every_route_times_every_kind_of_client(guarded: Guarded, http: httpx.Client, case: tuple[Route, str]) -> None:
    route, method = case
    assert route.needs is not None
    for kind in (*UNKNOWN, *LIMITED, *ADMITTED):
        answer = _ask(http, route, method, kind, guarded.issuer, MODEL)
        status = answer.status_code if answer.status_code in (401, 403) else 200
        assert status == _expected(kind, route.needs.scope), (kind, answer.status_code, answer.text)
        assert ("www-authenticate" in answer.headers) is (status == 401)
    guarded.core.load(MODEL)


@pytest.mark.parametrize("case", CASES, ids=_case)
def test_no_answer_depends_on_whether_a_model_exists(
    guarded: Guarded, http: httpx.Client, case: tuple[Route, str]
) -> None:
    for kind in (*UNKNOWN, *LIMITED):
        answers = []
        for model in (MODEL, "nobody"):
            answer = _ask(http, *case, kind, guarded.issuer, model)
            told = {name: value for name, value in answer.headers.items() if name not in ("date", "content-length")}
            answers.append((answer.status_code, answer.text.replace(model, "M"), told))
        assert answers[0] == answers[1], kind


@pytest.mark.parametrize("case", CASES, ids=_case)
def test_a_refusal_is_reported_once(guarded: Guarded, http: httpx.Client, case: tuple[Route, str]) -> None:
    route, method = case
    assert route.needs is not None
    for kind, name in (("none", ""), ("other", "eu")):
        guarded.denied.clear()
        answer = _ask(http, route, method, kind, guarded.issuer, MODEL)
        assert [(event.client, event.protocol) for event in guarded.denied] == (
            [(name, "http")] if answer.status_code in (401, 403) else []
        )


# gRPC


@pytest.fixture(scope="module", params=TRANSPORTS)
def channel(guarded: Guarded, request: pytest.FixtureRequest) -> Iterator[Any]:
    with grpc.insecure_channel(guarded.grpc[request.param]) as channel:
        yield channel


def _call(channel: Any, name: str, kind: str, issuer: Any, model: str) -> tuple[int, str]:
    """Status and text of a call; of a stream that is let in, those of its first answer."""
    headers = _headers(kind, NEEDS[name].right, issuer)
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    try:
        if name == "ModelStreamInfer":
            answer = next(
                stub.ModelStreamInfer(iter([service_pb2.ModelInferRequest(model_name=model)]), metadata=headers)
            )
            text = answer.error_message
            return (403 if "lacks the right" in text else 200), text
        message = getattr(service_pb2, f"{name}Request")()
        for field in ("name", "model_name"):
            if field in message.DESCRIPTOR.fields_by_name:
                setattr(message, field, model)
        getattr(stub, name)(message, metadata=headers)
    except grpc.RpcError as error:
        statuses = {grpc.StatusCode.UNAUTHENTICATED: 401, grpc.StatusCode.PERMISSION_DENIED: 403}
        return statuses.get(error.code(), 200), error.details()
    return 200, ""


def test_the_table_has_every_method() -> None:
    assert set(NEEDS) == {*METHODS, "ModelStreamInfer"}


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_every_method_times_every_kind_of_client(guarded: Guarded, channel: Any, name: str) -> None:
    scope = NEEDS[name].scope
    for kind in (*UNKNOWN, *LIMITED, *ADMITTED):
        status, text = _call(channel, name, kind, guarded.issuer, MODEL)
        assert status == _expected(kind, scope), (kind, text)
        if kind in (*UNKNOWN, *LIMITED):
            status, other = _call(channel, name, kind, guarded.issuer, "nobody")
            assert (status, other.replace("nobody", MODEL)) == (_expected(kind, scope), text)
    guarded.core.load(MODEL)


@pytest.mark.parametrize("name", ["ModelStatistics", "TraceSetting"])
def test_a_method_that_names_no_model_is_about_all_of_them(guarded: Guarded, channel: Any, name: str) -> None:
    limited = 403 if name == "TraceSetting" else 200
    for kind in LIMITED:
        assert _call(channel, name, kind, guarded.issuer, "")[0] == limited
    assert _call(channel, name, "key", guarded.issuer, "")[0] == 200


def test_health_is_open_and_reflection_is_not(channel: Any) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    assert health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
    assert next(health.Watch(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    with pytest.raises(grpc.RpcError) as raised:
        next(stub.ServerReflectionInfo(iter([asked])))
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
    answer = next(stub.ServerReflectionInfo(iter([asked]), metadata=[("x-api-key", "eu-key")]))
    assert SERVICE in {one.name for one in answer.list_services_response.service}
