"""``gs://``, ``az://`` and ``as://``: the stores' own clients, against servers of the test."""

import hashlib
import importlib
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from ipaddress import IPv4Address
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from agents.fetch.tests.clouds import ACCOUNT, AzureBlobs, GoogleStorage
from agents.fetch.tests.servers import sha256
from repoagent.errors import RepoAgentError
from repoagent.storage.repositories.filesystems import open_filesystem
from repoagent.storage.repositories.url import parse_url
from tests.file_server import FileServer, Request

pytestmark = pytest.mark.skipif(
    not (find_spec("gcsfs") and find_spec("adlfs")), reason="gcsfs or adlfs is not installed: extras of repoagent-core"
)
Fetch = Callable[..., dict[str, bytes]]
WEIGHTS = (os.urandom(1_000_003) * 19)[: 17 << 20]  # three ranges
FILES = {"model.onnx": WEIGHTS, "labels/names.txt": b"a\nb\n", "empty": b"", "labels/r\u00e9sum\u00e9 & more.txt": b"x"}
EXPECTED = {f"1/{path}": content for path, content in FILES.items()}
DIGESTS = [f"{path}={sha256(content)}" for path, content in FILES.items()]


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleStorage]:
    with GoogleStorage() as storage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        storage.objects = {f"models/fraud/{path}": content for path, content in FILES.items()}
        yield storage


@pytest.fixture
def azure(monkeypatch: pytest.MonkeyPatch) -> Iterator[AzureBlobs]:
    with AzureBlobs() as blobs:
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", blobs.connection)
        blobs.objects = {f"models/fraud/{path}": content for path, content in FILES.items()}
        yield blobs


@pytest.mark.slow
@pytest.mark.parametrize("url", ["gs://models/fraud", "gs://models/fraud/", "gcs://models/fraud"])
def test_a_model_in_a_bucket_of_google_comes(fetch: Fetch, google: GoogleStorage, url: str) -> None:
    google.page = 1
    assert fetch({"url": url, "floating": "true"}) == EXPECTED
    assert fetch({"url": url, "digest": DIGESTS}) == EXPECTED
    assert fetch({"url": url, "floating": "true", "include": "labels/*"}) == {
        path: content for path, content in EXPECTED.items() if "labels" in path
    }


@pytest.mark.slow
@pytest.mark.parametrize("url", ["az://models/fraud", f"as://{ACCOUNT}.blob.core.windows.net/models/fraud"])
def test_a_model_in_a_container_of_azure_comes(fetch: Fetch, azure: AzureBlobs, url: str) -> None:
    azure.page = 1
    assert fetch({"url": url, "floating": "true"}) == EXPECTED
    assert fetch({"url": url, "digest": DIGESTS}) == EXPECTED
    assert azure.refusals == 0


@pytest.mark.slow
def test_large_files_come_in_ranges(fetch: Fetch, google: GoogleStorage, azure: AzureBlobs) -> None:
    for store, url in ((google, "gs://models/fraud"), (azure, "az://models/fraud")):
        fetch({"url": url, "floating": "true", "include": "model.onnx"})
        asked = [one for one in store.seen_headers if one.get("Range") or one.get("x-ms-range")]
        assert len(asked) >= 3


@pytest.mark.slow
def test_what_is_in_the_cache_is_not_asked_for_again(
    fetch: Fetch, google: GoogleStorage, azure: AzureBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for store, url in ((google, "gs://models/fraud"), (azure, "az://models/fraud")):
        fetch({"url": url, "digest": DIGESTS})
        store.objects.clear()
        assert fetch({"url": url, "digest": DIGESTS}) == EXPECTED
    monkeypatch.setenv("REPOAGENT_OFFLINE", "1")
    assert fetch({"url": "gs://models/fraud", "digest": DIGESTS}) == EXPECTED


@pytest.mark.slow
@pytest.mark.parametrize("lie", [b"", b"other", WEIGHTS[:-1] + b"x"])
def test_another_content_is_refused(fetch: Fetch, google: GoogleStorage, azure: AzureBlobs, lie: bytes) -> None:
    for store, url in ((google, "gs://models/fraud"), (azure, "az://models/fraud")):
        store.objects["models/fraud/model.onnx"] = lie
        with pytest.raises(RepoAgentError, match="has the digest sha256:"):
            fetch({"url": url, "digest": DIGESTS})


def test_a_place_that_is_not_there_is_reported(fetch: Fetch, google: GoogleStorage, azure: AzureBlobs) -> None:
    for url in ("gs://models/other", "az://models/other", "gs://other/x", "az://other/x"):
        with pytest.raises(RepoAgentError, match=r"no file|not found|no such|does not exist|there is no"):
            fetch({"url": url, "floating": "true"})


def test_a_key_that_is_not_the_accounts_is_refused_with_the_reason(
    fetch: Fetch, azure: AzureBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure.connection.replace("AccountKey=", "AccountKey=AAAA"))
    with pytest.raises(RepoAgentError, match=r"access|refused|Authenticat|authoriz") as raised:
        fetch({"url": "az://models/fraud", "floating": "true"})
    assert "AccountKey" not in str(raised.value)


@pytest.mark.parametrize("name", ["../escaped", "a/../../escaped", "/escaped", "a//escaped", "./escaped"])
def test_names_that_lead_out_are_refused(
    fetch: Fetch, google: GoogleStorage, azure: AzureBlobs, name: str, tmp_path: Path
) -> None:
    for store, url in ((google, "gs://models/fraud"), (azure, "az://models/fraud")):
        store.objects = {f"models/fraud/{name}": b"x"}
        try:
            found = fetch({"url": url, "floating": "true"})
        except RepoAgentError:
            continue
        # The store's own client may leave such a name out, or clean it: then it is inside.
        assert all(path.startswith("1/") and ".." not in path for path in found)
    assert [path for path in tmp_path.rglob("*escaped*") if f"{tmp_path}/cache/" not in str(path)] == []
    assert not list(tmp_path.parent.glob("*escaped*"))


@pytest.mark.slow
@pytest.mark.parametrize("size", ["-5", "18446744073709551616", "x"])
def test_sizes_that_no_file_has_are_refused(
    fetch: Fetch, google: GoogleStorage, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    plain = GoogleStorage._resource
    monkeypatch.setattr(GoogleStorage, "_resource", lambda *given: {**plain(*given), "size": size})
    with pytest.raises(RepoAgentError):
        fetch({"url": "gs://models/fraud", "floating": "true"})
    with pytest.raises(RepoAgentError):
        fetch({"url": "gs://models/fraud", "digest": DIGESTS})


@pytest.mark.parametrize(("given", "module"), [("", "gcsfs.core"), ("false", "gcsfs.core"), ("true", "gcsfs")])
def test_google_is_asked_for_the_kind_of_a_bucket_only_by_those_who_want_it(
    google: GoogleStorage, monkeypatch: pytest.MonkeyPatch, given: str, module: str
) -> None:
    """That question goes over gRPC, before each range if there is no answer: it hung where only HTTP gets through."""
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", given)
    kind = type(open_filesystem(parse_url("gs://models/fraud")))
    assert kind is importlib.import_module(module).GCSFileSystem


# Tokens of a workload identity of Azure, renewed while a file comes.
#
# Azure's libraries send tokens over TLS only, and trust what ``SSL_CERT_FILE`` names when they are imported. So the
# client is a process of its own, and the servers have a certificate of the test.

MEGABYTE = (os.urandom(1_000_003) * 36)[: 33 << 20]  # five ranges
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


@pytest.mark.slow
def test_a_workload_identity_is_renewed_while_a_file_comes(blobs: Guarded, certificate: Path, tmp_path: Path) -> None:
    blobs.objects["models/fraud/w"] = MEGABYTE
    (tmp_path / "cluster-token").write_text("the token of the cluster")
    digest = hashlib.sha256(MEGABYTE).hexdigest()
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
