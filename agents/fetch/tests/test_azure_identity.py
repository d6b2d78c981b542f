"""Tokens of a workload identity of Azure, renewed while a file comes.

Azure's libraries send tokens over TLS only, and trust what ``SSL_CERT_FILE`` names when they are imported. So the
client is a process of its own, and the servers have a certificate of the test.
"""

import hashlib
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from agents.fetch.tests.clouds import AzureBlobs
from tests.file_server import FileServer, Request

pytest.importorskip("adlfs")
pytestmark = pytest.mark.slow

WEIGHTS = (os.urandom(1_000_003) * 36)[: 33 << 20]  # five ranges
USES = 2
CLIENT = """
import hashlib, sys
from pathlib import Path
from repoagent.storage.cache.cache import Cache
from repoagent.storage.repositories.filesystems import open_patiently
from repoagent.storage.repositories.url import parse_url
from repoagent.storage.transfer.streams import RemoteFile
from repoagent.storage.transfer.streams import fsspec_opener
host, path, digest, cache = sys.argv[1:]
fs, _ = open_patiently(parse_url("az://models/fraud"), {"account_name": "account", "account_host": host})
file = RemoteFile("1/w", "az://" + path, fsspec_opener(fs, path, None), digest=digest)
with Cache(Path(cache)) as store, store.scope() as scope:
    tree = scope.get_or_build("m", lambda target: scope.download([file], target) and None)
    print(hashlib.sha256((tree / "1" / "w").read_bytes()).hexdigest())
"""


class Guarded(AzureBlobs):
    """Blobs for those who show a token that is not used up."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: dict[str, int] = {}

    def _answer(self, request: Request) -> bool:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        with self.lock:
            left = self.tokens.get(token, 0)
            self.tokens[token] = left - 1
        if left <= 0:
            self.refusals += 1
            request.answer(401, headers={"x-ms-error-code": "InvalidAuthenticationInfo"})
            return True
        return self._serve(request)


class Authority(FileServer):
    """Gives tokens that end at once for the token of a cluster."""

    def __init__(self, blobs: Guarded) -> None:
        super().__init__()
        self._blobs = blobs
        self.forms: list[dict[str, list[str]]] = []
        self.handlers.append(self._give)

    def _give(self, request: Request) -> bool:
        with self.lock:
            self.forms.append(parse_qs(request.body().decode()))
            token = f"token-{len(self.forms)}"
        with self._blobs.lock:
            self._blobs.tokens[token] = USES
        answer = {"access_token": token, "expires_in": 0, "token_type": "Bearer"}
        request.answer(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})
        return True


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), False)
    builder = builder.add_extension(x509.BasicConstraints(True, None), True)
    pem = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    path = tmp_path / "server.pem"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + pem)
    return path


def over_tls(server: FileServer, certificate: Path) -> str:
    """``HOST:PORT`` of ``server``, which speaks TLS from now on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server._server.socket = context.wrap_socket(server._server.socket, server_side=True)
    return server.host


@pytest.fixture
def blobs() -> Iterator[Guarded]:
    with Guarded() as blobs:
        yield blobs


def test_a_workload_identity_is_renewed_while_a_file_comes(blobs: Guarded, certificate: Path, tmp_path: Path) -> None:
    blobs.objects["models/fraud/w"] = WEIGHTS
    (tmp_path / "cluster-token").write_text("the token of the cluster")
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    with Authority(blobs) as authority:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "NO_PROXY": "127.0.0.1",
            "SSL_CERT_FILE": str(certificate),
            "AZURE_AUTHORITY_HOST": f"https://{over_tls(authority, certificate)}",
            "AZURE_TENANT_ID": "00000000-0000-0000-0000-000000000001",
            "AZURE_CLIENT_ID": "00000000-0000-0000-0000-000000000002",
            "AZURE_FEDERATED_TOKEN_FILE": str(tmp_path / "cluster-token"),
        }
        arguments = [over_tls(blobs, certificate), "models/fraud/w", f"sha256:{digest}", str(tmp_path / "cache")]
        command = [sys.executable, "-c", CLIENT, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)
        assert (done.returncode, done.stdout) == (0, f"{digest}\n"), done.stderr[-3000:]
        assert len(authority.forms) >= 3
        assert {form["client_assertion"][0] for form in authority.forms} == {"the token of the cluster"}
    assert blobs.refusals == 0
