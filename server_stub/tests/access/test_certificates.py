"""Certificates of clients as identities, over HTTP and over gRPC."""

import hashlib
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import httpx
import pytest
from repoagent_server.access import Scope
from repoagent_server.access.access_file import AccessFile
from repoagent_server.grpc.access import NEEDS
from repoagent_server.grpc.frontend import GrpcFrontend
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend
from repoagent_server.http.service import ServiceFactory
from repoagent_server.shared.grpc_options import GrpcOptions
from repoagent_server.tls.certificates import Certificates, TlsFiles
from tritonclient.grpc import service_pb2, service_pb2_grpc

from server_stub.tests.access.conftest import Follow, client
from server_stub.tests.access.routes import CASES
from tests.certificates import Authority, Pair
from tests.waiting import until

SPIFFE: Final = "spiffe://example.test/gateway"
NAMES: Final = ("DNS:gw.example.test", f"URI:{SPIFFE}", "email:gw@example.test")
CODES: Final = {200: "OK", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED"}

Ask = Callable[..., str]
"""Asks for the metadata of a model with some headers; the status as gRPC calls it."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("authority"))
    made.issue("server")
    made.issue("gateway", NAMES)
    made.issue("another", ())
    return made


def _pair(authority: Authority, name: str) -> Pair:
    root = Path(authority.root)
    return Pair(str(root.with_name(f"{name}.pem")), str(root.with_name(f"{name}.key")))


class _Serving:
    """Front ends with TLS that ask for certificates, and clients of them."""

    def __init__(self, core: Any, authority: Authority, stack: ExitStack) -> None:
        self._core = core
        self._authority = authority
        self._stack = stack
        self._own = _pair(authority, "server")

    def web(self, file: AccessFile, pair: Pair | None, *, mutual: bool = True) -> httpx.Client:
        """A client of HTTP."""
        files = TlsFiles("HTTP", self._own.certificate, self._own.key, self._authority.root, mutual)
        front = HttpFrontend(Endpoint(port=0, tls=Certificates(files)), self._service(file))
        self._stack.callback(front.stop)
        front.start()
        context = ssl.create_default_context(cafile=self._authority.root)
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        url = f"https://localhost:{front.bind()[1]}"
        return self._stack.enter_context(httpx.Client(base_url=url, verify=context))

    def _service(self, file: AccessFile) -> ServiceFactory:
        """With everything on."""
        return api_service(Served(self._core, access=file.access), metrics=str, openai=True, ui=True, explicit=True)

    def http(self, file: AccessFile, pair: Pair | None, *, mutual: bool = True) -> Ask:
        web = self.web(file, pair, mutual=mutual)

        def ask(model: str = "ident", headers: Mapping[str, str] | None = None) -> str:
            status = web.get(f"/v2/models/{model}", headers=headers).status_code
            return CODES.get(status, str(status))

        return ask

    def channel(self, file: AccessFile, pair: Pair) -> Any:
        """A channel of gRPC."""
        options = GrpcOptions(
            port=0,
            use_ssl=True,
            use_mutual_auth=True,
            server_cert=self._own.certificate,
            server_key=self._own.key,
            root_cert=self._authority.root,
        )
        front = GrpcFrontend(Served(self._core, access=file.access), options)
        self._stack.callback(front.stop)
        front.start()
        files = [Path(name).read_bytes() for name in (self._authority.root, pair.key, pair.certificate)]
        address = f"localhost:{front.bind()[1]}"
        return self._stack.enter_context(grpc.secure_channel(address, grpc.ssl_channel_credentials(*files)))

    def ask(self, kind: str, file: AccessFile, pair: Pair) -> Ask:
        """Over ``http`` or ``grpc``."""
        if kind == "http":
            return self.http(file, pair)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel(file, pair))

        def ask(model: str = "ident", headers: Mapping[str, str] | None = None) -> str:
            try:
                stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=model), metadata=list((headers or {}).items()))
            except grpc.RpcError as error:
                return str(error.code().name)
            return "OK"

        return ask


@pytest.fixture
def serving(core: Any, authority: Authority) -> Iterator[_Serving]:
    with ExitStack() as stack:
        yield _Serving(core, authority, stack)


@pytest.fixture(params=["http", "grpc"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("name", ["uri", "dns", "email", "cn", "sha256"])
def test_each_name_of_a_certificate_can_be_the_client(
    authority: Authority, follow: Follow, serving: _Serving, kind: str, name: str
) -> None:
    pair = _pair(authority, "gateway")
    der = ssl.PEM_cert_to_DER_cert(Path(pair.certificate).read_text())
    names = {
        "uri": f"uri:{SPIFFE}",
        "dns": "dns:GW.example.test",
        "email": "email:gw@example.test",
        "cn": "cn:gateway",
        "sha256": f"sha256:{hashlib.sha256(der).hexdigest().upper()}",
    }
    file = follow(client("gateway", models="id*", certificates=[names[name]]))
    ask = serving.ask(kind, file, pair)
    assert (ask(), ask("str"), ask("nobody")) == ("OK", "PERMISSION_DENIED", "PERMISSION_DENIED")
    assert serving.ask(kind, file, _pair(authority, "another"))() == "UNAUTHENTICATED"


@pytest.mark.parametrize(
    "name",
    [
        f"uri:{SPIFFE}/",
        "uri:spiffe://example.test/*",
        "dns:example.test",
        "dns:*.example.test",
        "cn:Gateway",
        "dns:gateway",
    ],
)
def test_names_are_compared_whole(
    authority: Authority, follow: Follow, serving: _Serving, kind: str, name: str
) -> None:
    file = follow(client("gateway", certificates=[name]))
    assert serving.ask(kind, file, _pair(authority, "gateway"))() == "UNAUTHENTICATED"


def test_a_key_goes_before_the_certificate(authority: Authority, follow: Follow, serving: _Serving, kind: str) -> None:
    file = follow(client("gateway", certificates=["cn:gateway"], models="id*"), client("other", models="str"))
    ask = serving.ask(kind, file, _pair(authority, "gateway"))
    assert ask("str", {"x-api-key": "other-key"}) == "OK"
    assert ask("ident", {"x-api-key": "other-key"}) == "PERMISSION_DENIED"
    assert ask("ident", {"x-api-key": "wrong"}) == "UNAUTHENTICATED"
    assert ask("ident") == "OK"


def test_where_no_certificate_is_needed_a_key_does(authority: Authority, follow: Follow, serving: _Serving) -> None:
    file = follow(client("gateway", certificates=["cn:gateway"]), client("a"))
    assert serving.http(file, _pair(authority, "gateway"), mutual=False)() == "OK"
    ask = serving.http(file, None, mutual=False)
    assert (ask(), ask("ident", {"x-api-key": "a-key"})) == ("UNAUTHENTICATED", "OK")


def test_a_certificate_of_another_authority_is_nobody(
    authority: Authority, follow: Follow, serving: _Serving, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "stranger").issue("gateway", NAMES)
    file = follow(client("gateway", certificates=["cn:gateway", f"uri:{SPIFFE}"]))
    for mutual in (True, False):
        ask = serving.http(file, stranger, mutual=mutual)
        try:
            status = ask()
        except httpx.TransportError:
            continue
        assert status == "UNAUTHENTICATED"


def test_a_certificate_that_is_taken_out_of_the_file_is_refused_on_its_open_connection(
    authority: Authority, follow: Follow, serving: _Serving, kind: str, path: Path
) -> None:
    ask = serving.ask(kind, follow(client("gateway", certificates=["cn:gateway"])), _pair(authority, "gateway"))
    assert ask() == "OK"
    path.write_text(client("someone"))
    until(lambda: ask() == "UNAUTHENTICATED")


def test_every_method_refuses_a_revoked_certificate(authority: Authority, follow: Follow, serving: _Serving) -> None:
    channel = serving.channel(follow(client("someone")), _pair(authority, "gateway"))
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    for name, need in NEEDS.items():
        message = getattr(service_pb2, f"{name}Request", service_pb2.ModelInferRequest)()
        if need.scope.value == "open":
            getattr(stub, name)(message)
            continue
        call = partial(getattr(stub, name), iter([message]) if name == "ModelStreamInfer" else message)
        with pytest.raises(grpc.RpcError) as raised:
            list(call())
        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED, name


def test_an_open_stream_of_a_revoked_certificate_is_refused(
    authority: Authority, follow: Follow, serving: _Serving, path: Path
) -> None:
    file = follow(client("gateway", certificates=["cn:gateway"]))
    channel = serving.channel(file, _pair(authority, "gateway"))
    go_on = threading.Semaphore(1)
    over = threading.Event()

    def messages() -> Any:
        while True:
            go_on.acquire()
            if over.is_set():
                return
            yield service_pb2.ModelInferRequest(model_name="nobody")

    answers = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(messages())
    assert "nobody" in next(answers).error_message
    rules = file.access.rules
    path.write_text(client("someone"))
    until(lambda: file.access.rules is not rules)
    go_on.release()
    assert "belongs to no client of the access file" in next(answers).error_message
    over.set()
    go_on.release()
    answers.cancel()


def test_every_route_refuses_a_revoked_certificate(authority: Authority, follow: Follow, serving: _Serving) -> None:
    web = serving.web(follow(client("someone")), _pair(authority, "gateway"))
    for case in CASES:
        status = web.request(case.method, case.path("ident")).status_code
        assert case.route.needs is not None
        assert (status == 401) is (case.route.needs.scope is not Scope.OPEN), case
