"""Every route and every method, times every kind of client, through sockets."""

from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from repoagent_server.access import Right, Scope
from repoagent_server.grpc.access import NEEDS
from repoagent_server.grpc.service import METHODS, SERVICE
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from tritonclient.grpc import service_pb2, service_pb2_grpc

from server_stub.tests.access.conftest import Guarded, client_of
from server_stub.tests.access.kinds import ADMITTED, LIMITED, MODEL, UNKNOWN, expected, headers
from server_stub.tests.access.routes import BODY, CASES, Case

# HTTP


def _case(case: Case) -> str:
    return f"{case.method} {case.path('M')}"


def _ask(client: httpx.Client, case: Case, kind: str, issuer: Any, model: str) -> httpx.Response:
    need = case.route.needs
    assert need is not None
    body = None if case.method == "GET" else {"model": model, **BODY}
    shown = headers(kind, need.right, issuer)
    return client.request(case.method, case.path(model), headers=shown, json=body)


@pytest.fixture(scope="module")
def http(guarded: Guarded) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=guarded.http) as client:
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=_case)
def test_every_route_times_every_kind_of_client(guarded: Guarded, http: httpx.Client, case: Case) -> None:
    assert case.route.needs is not None
    for kind in (*UNKNOWN, *LIMITED, *ADMITTED):
        answer = _ask(http, case, kind, guarded.issuer, MODEL)
        status = answer.status_code if answer.status_code in (401, 403) else 200
        assert status == expected(kind, case.route.needs.scope), (kind, answer.status_code, answer.text)
        assert ("www-authenticate" in answer.headers) is (status == 401)
    guarded.core.load(MODEL)


@pytest.mark.parametrize("case", CASES, ids=_case)
def test_no_answer_depends_on_whether_a_model_exists(guarded: Guarded, http: httpx.Client, case: Case) -> None:
    for kind in (*UNKNOWN, *LIMITED):
        answers = []
        for model in (MODEL, "nobody"):
            answer = _ask(http, case, kind, guarded.issuer, model)
            told = {name: value for name, value in answer.headers.items() if name not in ("date", "content-length")}
            named = "{model}" in case.form or case.method == "POST"  # otherwise both requests are the same
            text = answer.text.replace(model, "M") if named else answer.text
            answers.append((answer.status_code, text, told))
        assert answers[0] == answers[1], kind


@pytest.mark.parametrize("case", CASES, ids=_case)
def test_a_refusal_is_reported_once(guarded: Guarded, http: httpx.Client, case: Case) -> None:
    for kind, name in (("none", ""), ("other", "eu")):
        guarded.denied.clear()
        answer = _ask(http, case, kind, guarded.issuer, MODEL)
        assert [(event.client, event.protocol) for event in guarded.denied] == (
            [(name, "http")] if answer.status_code in (401, 403) else []
        )


@pytest.fixture(scope="module")
def without_openai(guarded: Guarded) -> Iterator[httpx.Client]:
    """A port over the same core, with the same access file, where OpenAI's API is off."""
    with client_of(api_service(Served(guarded.core, access=guarded.file.access))) as client:
        yield client


@pytest.mark.parametrize("case", [case for case in CASES if case.form.startswith("/v1/")], ids=_case)
def test_only_clients_that_are_let_in_learn_that_an_api_is_off(
    guarded: Guarded, without_openai: httpx.Client, case: Case
) -> None:
    assert case.route.needs is not None
    for kind in (*UNKNOWN, *LIMITED, *ADMITTED):
        status = expected(kind, case.route.needs.scope if case.route.needs.scope is not Scope.BODY else Scope.KNOWN)
        for model in (MODEL, "nobody"):
            answer = _ask(without_openai, case, kind, guarded.issuer, model)
            assert answer.status_code == (404 if status == 200 else status), (kind, answer.text)
            assert ("--allow-openai" in answer.text) is (status == 200), (kind, answer.text)


def test_the_metrics_port_times_every_kind_of_client(guarded: Guarded) -> None:
    for kind in (*UNKNOWN, *LIMITED, *ADMITTED):
        answer = httpx.get(f"{guarded.metrics}/metrics", headers=headers(kind, Right.METADATA, guarded.issuer))
        assert answer.status_code == expected(kind, Scope.SERVER), kind


# gRPC


@pytest.fixture(scope="module")
def channel(guarded: Guarded) -> Iterator[Any]:
    with grpc.insecure_channel(guarded.grpc) as channel:
        yield channel


def _call(channel: Any, name: str, kind: str, issuer: Any, model: str) -> tuple[int, str]:
    """Status and text of a call; of a stream that is let in, those of its first answer."""
    shown = headers(kind, NEEDS[name].right, issuer)
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    try:
        if name == "ModelStreamInfer":
            answer = next(
                stub.ModelStreamInfer(iter([service_pb2.ModelInferRequest(model_name=model)]), metadata=shown)
            )
            text = answer.error_message
            return (403 if "lacks the right" in text else 200), text
        message = getattr(service_pb2, f"{name}Request")()
        for field in ("name", "model_name"):
            if field in message.DESCRIPTOR.fields_by_name:
                setattr(message, field, model)
        getattr(stub, name)(message, metadata=shown)
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
        assert status == expected(kind, scope), (kind, text)
        if kind in (*UNKNOWN, *LIMITED):
            status, other = _call(channel, name, kind, guarded.issuer, "nobody")
            assert (status, other.replace("nobody", MODEL)) == (expected(kind, scope), text)
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
