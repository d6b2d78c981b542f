"""What a request leaves behind: not a long name, not a key, not rules of the past."""

import gc
import hashlib
import threading
import time
import weakref
from typing import Any

import grpc
import httpx
import pytest
from repoagent_server.access import Access, AccessError, Caller, Client, Grant, Right
from repoagent_server.access.credentials import Given
from repoagent_server.access.key_sources import FetchedSets
from repoagent_server.access.rights import for_model
from repoagent_server.access.rules import Rules
from repoagent_server.handlers.headers import HeaderForwarding
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend
from tritonclient.grpc import service_pb2, service_pb2_grpc

from server_stub.tests.access.conftest import PATIENCE, Guarded

LONG = "x" * 1_000_000


def test_a_long_name_is_neither_kept_nor_reported_whole() -> None:
    client = Client("a", [Grant(("fraud-*",), frozenset(Right))])
    with pytest.raises(AccessError) as raised:
        Access().require(Caller(client, Given(), Rules()), for_model(Right.INFER), LONG)
    assert len(raised.value.model) + len(raised.value.message) < 1000
    for number in range(100):
        assert client.may(Right.INFER, f"fraud-{LONG}{number}")
    assert sum(len(model) for _, model in client._known) < 100_000


def test_a_long_name_in_a_message_is_reported_short(guarded: Guarded) -> None:
    guarded.denied.clear()
    with grpc.insecure_channel(guarded.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError):
            stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=LONG), metadata=[("x-api-key", "eu-key")])
    assert [len(event.model) < 300 for event in guarded.denied] == [True]


def test_a_report_has_no_query_and_no_long_target(guarded: Guarded) -> None:
    guarded.denied.clear()
    httpx.get(f"{guarded.http}/v2/models/shared?api_key=root-key")
    httpx.get(f"{guarded.http}/v2/models/{'x' * 30_000}")
    assert guarded.denied[0].route == "GET /v2/models/shared"
    assert len(guarded.denied[1].route) < 600


def test_a_caller_does_not_keep_the_rules_that_it_was_found_by() -> None:
    """An idle connection keeps its caller; rules that were replaced must go all the same."""
    client = Client("a", ())
    rules = Rules(keys={hashlib.sha256(b"k").digest(): client})
    access = Access(rules)
    caller = access.caller(Given(b"k"))
    past = weakref.ref(rules)
    access.replace(Rules())
    del rules
    gc.collect()
    assert past() is None
    with pytest.raises(AccessError):
        access.current(caller)


def test_a_key_does_not_reach_the_model_as_a_parameter(core: Any, guarded: Guarded) -> None:
    service = api_service(Served(core, access=guarded.file.access), forward_headers=".*")
    front = HttpFrontend(Endpoint(port=0), service)
    front.start()
    try:
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
        for headers in ({"x-api-key": "root-key"}, {"Authorization": "Bearer root-key"}):
            url = "http://{}:{}/v2/models/ident/infer".format(*front.bind())
            assert httpx.post(url, json=body, headers={**headers, "x-tenant": "t"}).status_code == 200
        for request in core.requests:
            told = request.asked.parameters
            assert told["x-tenant"] == "t"
            assert not {"x-api-key", "authorization"} & {name.lower() for name in told}
    finally:
        front.stop()


def test_without_access_control_headers_are_forwarded_as_ever() -> None:
    assert HeaderForwarding(".*").chosen([("Authorization", "x")]) == {"Authorization": "x"}


def test_a_url_that_hangs_does_not_hold_up_the_end() -> None:
    gate = threading.Event()
    begun = threading.Event()

    def get(_: str) -> bytes:
        begun.set()
        gate.wait(PATIENCE)
        return b""

    sets = FetchedSets(get)
    try:
        with pytest.raises(Exception, match="has not answered"):
            sets.data("https://login.test/keys")
        assert begun.wait(PATIENCE)
        before = time.monotonic()
        sets.close()
        assert time.monotonic() - before < PATIENCE / 2
    finally:
        gate.set()
