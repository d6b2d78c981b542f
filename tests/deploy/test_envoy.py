"""The example of Envoy, run by Envoy: tokens, quotas, and what is not for the outside."""

import json
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final

import httpx
import pytest
import tritonclient.grpc as triton
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwcrypto import jwk, jwt
from repoagent_server.grpc.frontend import GrpcFrontend
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend
from repoagent_server.shared.grpc_options import GrpcOptions

from repoagent.serving.core import CoreOptions, ServingCore

pytestmark = pytest.mark.slow

PATIENCE: Final = 120
DIGITS: Final = Path(__file__).resolve().parents[2] / "examples" / "digits" / "repository" / "digits"
ISSUER: Final = "https://issuer.example"
ASKED: Final = {"inputs": [{"name": "pixels", "datatype": "FP32", "shape": [1, 64], "data": [0.0] * 64}]}


class Proxy:
    """Envoy in front of a server, and the provider of tokens."""

    def __init__(self, url: str, certificate: Path, key: jwk.JWK) -> None:
        self.url = url
        self.certificate = certificate
        self._key = key
        context = ssl.create_default_context(cafile=certificate)
        self.http = httpx.Client(base_url=url, verify=context, timeout=PATIENCE)

    def token(self, client: str, *, audience: str = "repoagent", minutes: int = 5) -> dict[str, str]:
        """The header of a client."""
        claims = {"iss": ISSUER, "aud": audience, "sub": client, "exp": int(time.time()) + 60 * minutes}
        made = jwt.JWT(header={"alg": "ES256", "kid": "k"}, claims=claims)
        made.make_signed_token(self._key)
        return {"authorization": f"Bearer {made.serialize()}"}


def _certificate(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "tls.crt").write_bytes(made.public_bytes(pem))
    (folder / "tls.key").write_bytes(key.private_bytes(pem, *plain))


def _provider(stack: ExitStack, keys: bytes) -> int:
    """Serve the key set of the issuer; the port."""

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(keys)))
            self.end_headers()
            self.wfile.write(keys)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Keys)
    stack.callback(server.server_close)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    stack.callback(thread.join)
    stack.callback(server.shutdown)
    return server.server_port


def _adapted(text: str, folder: Path, ports: dict[str, int]) -> dict[str, Any]:
    """The example with the addresses of the test. Nothing else is changed."""
    document: dict[str, Any] = yaml.safe_load(text.replace("/etc/envoy", str(folder)))
    document["admin"]["address"]["socket_address"]["port_value"] = 0
    (listener,) = document["static_resources"]["listeners"]
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": 0}
    for cluster in document["static_resources"]["clusters"]:
        (endpoint,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
        address = {"address": "127.0.0.1", "port_value": ports[cluster["name"]]}
        endpoint["endpoint"]["address"]["socket_address"] = address
        if cluster["name"] == "oidc":
            del cluster["transport_socket"]
    return document


@pytest.fixture(scope="module")
def proxy(deploy: Path, tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    envoy = tool("envoy")
    folder = tmp_path_factory.mktemp("envoy")
    _certificate(folder)
    key = jwk.JWK.generate(kty="EC", crv="P-256", kid="k")
    with ExitStack() as stack:
        (folder / "models").mkdir()
        (folder / "models" / "digits").symlink_to(DIGITS)
        core = stack.enter_context(ServingCore(CoreOptions(repositories=(str(folder / "models"),))))
        http = HttpFrontend(Endpoint(port=0), api_service(Served(core)))
        grpc = GrpcFrontend(Served(core), GrpcOptions(port=0))
        for front in (http, grpc):
            stack.callback(front.stop)
            front.start()
        keys = json.dumps({"keys": [json.loads(key.export_public())]}).encode()
        ports = {"http": http.bind()[1], "grpc": grpc.bind()[1], "oidc": _provider(stack, keys)}
        adapted = _adapted((deploy / "envoy" / "envoy.yaml").read_text(), folder, ports)
        (folder / "envoy.yaml").write_text(yaml.safe_dump(adapted))
        port = _start(stack, envoy, folder)
        proxy = Proxy(f"https://localhost:{port}", folder / "tls.crt", key)
        stack.callback(proxy.http.close)
        yield proxy


def _start(stack: ExitStack, envoy: str, folder: Path) -> int:
    """Run Envoy until the end; the port of its listener once the server behind it is healthy."""
    admin = folder / "admin"
    command = [envoy, "-c", str(folder / "envoy.yaml"), "--admin-address-path", str(admin), "--use-dynamic-base-id"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, "--concurrency", "1", "--log-level", "warning"], stderr=log)
    stack.callback(process.wait)
    stack.callback(process.kill)
    end = time.monotonic() + PATIENCE
    while True:
        assert process.poll() is None, (folder / "log").read_text()[-2000:]
        assert time.monotonic() < end, (folder / "log").read_text()[-2000:]
        if admin.exists() and admin.read_text():
            base = f"http://{admin.read_text()}"
            if "cluster.http.membership_healthy: 1" in httpx.get(f"{base}/stats?filter=membership_healthy").text:
                (listener,) = httpx.get(f"{base}/listeners?format=json").json()["listener_statuses"]
                return int(listener["local_address"]["socket_address"]["port_value"])
        time.sleep(0.05)


def test_envoy_takes_the_file_as_it_is(deploy: Path, tool: Callable[[str], str], tmp_path: Path) -> None:
    _certificate(tmp_path)
    text = (deploy / "envoy" / "envoy.yaml").read_text().replace("/etc/envoy", str(tmp_path))
    (tmp_path / "envoy.yaml").write_text(text)
    command = [tool("envoy"), "--mode", "validate", "-c", str(tmp_path / "envoy.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "[warning]" not in done.stderr


def test_a_valid_token_reaches_the_model_and_every_other_does_not(proxy: Proxy) -> None:
    path = "/v2/models/digits/infer"
    answer = proxy.http.post(path, json=ASKED, headers=proxy.token("anna"))
    assert answer.status_code == 200, answer.text
    assert answer.json()["model_name"] == "digits"
    assert proxy.http.post(path, json=ASKED).status_code == 401
    assert proxy.http.post(path, json=ASKED, headers={"authorization": "Bearer x.y.z"}).status_code == 401
    assert proxy.http.post(path, json=ASKED, headers=proxy.token("anna", minutes=-10)).status_code == 401
    assert proxy.http.post(path, json=ASKED, headers=proxy.token("anna", audience="other")).status_code == 403


def test_grpc_goes_the_same_way(proxy: Proxy) -> None:
    options = {"root_certificates": str(proxy.certificate), "ssl": True}
    with triton.InferenceServerClient(proxy.url.removeprefix("https://"), **options) as client:
        headers = proxy.token("berta")
        assert client.is_model_ready("digits", headers=headers)
        with pytest.raises(triton.InferenceServerException, match="Jwt is missing"):
            client.get_server_metadata()
        with pytest.raises(triton.InferenceServerException):
            client.get_model_repository_index(headers=headers)


def test_health_is_open_and_managing_is_closed(proxy: Proxy) -> None:
    assert proxy.http.get("/v2/health/ready").status_code == 200
    token = proxy.token("carl")
    for path in (
        "/v2/repository/index",
        "/v2/repository/models/digits/unload",
        "/v2//repository/index",
        "/v2/health/../repository/index",
        "/v2/models/x%2f..%2f../repository/index",
        "/v2/logging",
        "/metrics",
    ):
        answer = proxy.http.post(path, headers=token)
        assert answer.status_code in (400, 403), (path, answer.status_code)
    assert proxy.http.get("/v2/models/digits", headers=token).status_code == 200


def test_a_client_has_a_quota_of_its_own_whatever_it_calls_itself(proxy: Proxy) -> None:
    greedy = proxy.token("greedy")
    codes = [
        proxy.http.get("/v2", headers={**greedy, "x-client": f"other-{number}"}).status_code for number in range(400)
    ]
    assert codes[0] == 200
    assert 429 in codes, "the header of the client must not count"
    assert proxy.http.get("/v2", headers=proxy.token("modest")).status_code == 200
