"""Denied requests in the metrics: every way to be denied counts once, under a name of a short list."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import grpc
import httpx
import pytest
from repoagent_server.access import Cause, Denied
from repoagent_server.access.access import Denials
from repoagent_server.access.access_file import AccessFile
from repoagent_server.grpc.frontend import GrpcFrontend
from repoagent_server.handlers.headers import Api, Restriction
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend
from repoagent_server.shared.grpc_options import GrpcOptions
from tritonclient.grpc import service_pb2, service_pb2_grpc

from server_stub.tests.access.conftest import client

Counts = Callable[[], dict[tuple[str, str], float]]

_RESTRICTED: Final = {Api.LOGGING: Restriction("pass", b"word")}


class _Audit:
    """Keeps what is noted."""

    def __init__(self) -> None:
        self.notes: list[tuple[Any, Any]] = []

    def note(self, event: str, result: str, what: Any, actor: Any = None) -> None:
        assert (event, result) == ("denied", "denied")
        self.notes.append((what, actor))


@pytest.fixture
def audit() -> Any:
    return _Audit()


@pytest.fixture
def denials(audit: Any) -> Denials:
    return Denials(audit)


@pytest.fixture
def counts(denials: Denials) -> Counts:
    """The counters that are not 0."""

    def read() -> dict[tuple[str, str], float]:
        (family,) = denials.families()
        samples = {tuple(value for _, value in labels): number for labels, number in family.samples}
        assert len(samples) == 2 * len(Cause)
        return {labels: number for labels, number in samples.items() if number}  # type: ignore[misc]

    return read


@pytest.fixture
def access(denials: Denials, tmp_path: Path) -> Iterator[Any]:
    (tmp_path / "access.toml").write_text("\n".join([client("a", models="id*", rights="infer"), client("root")]))
    with AccessFile(tmp_path / "access.toml") as file:
        file.access.observe(denials.report)
        yield file.access


def test_over_http(core: Any, access: Any, denials: Denials, counts: Counts, audit: Any) -> None:
    service = api_service(Served(core, access=access, denials=denials), restrictions=_RESTRICTED)
    front = HttpFrontend(Endpoint(port=0), service)
    with ExitStack() as stack:
        stack.callback(front.stop)
        front.start()
        http = stack.enter_context(httpx.Client(base_url="http://{}:{}".format(*front.bind())))
        infer = "/v2/models/ident/infer"
        cases: list[tuple[int, Cause, httpx.Response]] = [
            (401, Cause.NO_KEY, http.post(infer, json={})),
            (401, Cause.INVALID_KEY, http.post(infer, json={}, headers={"x-api-key": "guess"})),
            (403, Cause.NO_RIGHT, http.get("/v2/models/ident", headers={"x-api-key": "a-key", "x-request-id": "r"})),
            (403, Cause.RESTRICTED, http.get("/v2/logging", headers={"x-api-key": "root-key"})),
            (403, Cause.FOREIGN, http.post(infer, json={}, headers={"origin": "https://other.example"})),
        ]
        assert [answer.status_code for _, _, answer in cases] == [status for status, _, _ in cases]
    assert counts() == {("http", cause.value): 1 for cause in Cause}
    address, port = front._endpoint.address, {actor.address.rpartition(":")[2] for _, actor in audit.notes}
    assert {actor.address.rpartition(":")[0] for _, actor in audit.notes} == {address}
    assert all(one.isdigit() for one in port)
    assert [(actor.client, actor.request) for what, actor in audit.notes if what["right"]] == [("a", "r")]


def test_what_the_body_decides_is_noted_with_the_request(core: Any, access: Any, denials: Denials, audit: Any) -> None:
    front = HttpFrontend(Endpoint(port=0), api_service(Served(core, access=access, denials=denials), openai=True))
    with ExitStack() as stack:
        stack.callback(front.stop)
        front.start()
        http = stack.enter_context(httpx.Client(base_url="http://{}:{}".format(*front.bind())))
        for request in ("r1", "r2"):
            headers = {"x-api-key": "a-key", "x-request-id": request}
            answer = http.post("/v1/completions", json={"model": "str", "prompt": "x"}, headers=headers)
            assert answer.status_code == 403
    assert [(actor.client, actor.request) for _, actor in audit.notes] == [("a", "r1"), ("a", "r2")]
    assert all(actor.address.startswith("127.0.0.1:") for _, actor in audit.notes)


def test_over_grpc(core: Any, access: Any, denials: Denials, counts: Counts, audit: Any) -> None:
    front = GrpcFrontend(Served(core, access=access, denials=denials), GrpcOptions(port=0), restrictions=_RESTRICTED)
    with ExitStack() as stack:
        stack.callback(front.stop)
        front.start()
        channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{front.bind()[1]}"))
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        infer, message = stub.ModelInfer, service_pb2.ModelInferRequest(model_name="str")
        for call, asked, key in (
            (infer, message, None),
            (infer, message, "guess"),
            (infer, message, "a-key"),
            (stub.ModelMetadata, service_pb2.ModelMetadataRequest(name="ident"), "a-key"),
            (stub.LogSettings, service_pb2.LogSettingsRequest(), "root-key"),
            (stub.LogSettings, service_pb2.LogSettingsRequest(), "root-key"),
        ):
            metadata = [("x-request-id", f"r{len(audit.notes)}")]
            metadata += [] if key is None else [("x-api-key", key)]
            with pytest.raises(grpc.RpcError):
                call(asked, metadata=metadata)
    assert counts() == {
        ("grpc", "no_key"): 1,
        ("grpc", "invalid_key"): 1,
        ("grpc", "no_right"): 2,
        ("grpc", "restricted_part"): 2,
    }
    assert {actor.address.rpartition(":")[0] for _, actor in audit.notes} == {"127.0.0.1"}
    assert [actor.request for _, actor in audit.notes] == [f"r{number}" for number in range(6)]


def test_counts_of_many_threads_are_all_there(denials: Denials, counts: Counts) -> None:
    start = threading.Barrier(16)

    def report() -> None:
        start.wait()
        for _ in range(500):
            denials.report(Denied("", "", "", "GET /", "", "http", Cause.NO_KEY))

    threads = [threading.Thread(target=report) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts() == {("http", "no_key"): 8000}
