"""Downloads that take longer than a credential lives."""

import http.client
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from agents.fetch.tests.clouds import GoogleStorage, GoogleTokens
from agents.fetch.tests.servers import sha256
from repoagent.errors import RepoAgentError
from tests.file_server import FileServer, Request

pytestmark = pytest.mark.slow

Fetch = Callable[..., dict[str, bytes]]
WEIGHTS = (os.urandom(1_000_003) * 43)[: 40 << 20]  # five ranges
USES = 2


class Amazon(FileServer):
    """In front of moto: keys that STS gives are good for a few requests, and have an end.

    moto neither ends keys nor looks at them, so this does. Everything else is moto's.
    """

    def __init__(self, behind: str) -> None:
        super().__init__()
        self._behind = urlsplit(behind)
        self.keys: dict[str, int] = {}
        """Access key -> requests that are left."""
        self.refusals = 0
        self.assumed: list[str] = []
        self.handlers.append(self._answer)

    def _answer(self, request: Request) -> bool:
        if request.command == "POST":
            self._give(request)
            return True
        key = request.headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0]
        with self.lock:
            left = self.keys.get(key, 0)
            self.keys[key] = left - 1
        if left > 0:
            self._pass_on(request, b"")
            return True
        self.refusals += 1
        request.answer(400, b"<Error><Code>ExpiredToken</Code><Message>The token has expired.</Message></Error>")
        return True

    def _give(self, request: Request) -> None:
        """AssumeRole and AssumeRoleWithWebIdentity, whose keys end in a minute."""
        form = request.body()
        self.assumed.append(re.findall(rb"Action=(\w+)", form)[0].decode())
        end = (datetime.now(UTC) + timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%SZ").encode()
        status, headers, body = self._ask(request, form)
        body = re.sub(rb"<Expiration>[^<]*<", b"<Expiration>" + end + b"<", body)
        with self.lock:
            self.keys[re.findall(rb"<AccessKeyId>([^<]*)<", body)[0].decode()] = USES
        request.answer(status, body, {"Content-Type": headers.get("Content-Type", "text/xml")})

    def _pass_on(self, request: Request, body: bytes) -> None:
        status, headers, content = self._ask(request, body)
        request.send_response(status)
        for name, value in headers.items():
            if name.lower() not in _OF_THE_CONNECTION:
                request.send_header(name, value)
        request.send_header("Content-Length", headers.get("Content-Length", "0"))
        request.end_headers()
        request.wfile.write(content)

    def _ask(self, request: Request, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(str(self._behind.hostname), self._behind.port)
        try:
            connection.request(request.command, request.path, body or None, dict(request.headers.items()))
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()


_OF_THE_CONNECTION = frozenset({"connection", "content-length", "transfer-encoding", "date", "server"})


@pytest.fixture
def amazon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Amazon]:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    from moto.server import ThreadedMotoServer  # takes a second, which a collection need not spend

    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    with Amazon(f"http://{host}:{port}") as amazon:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", amazon.url)
        yield amazon
    moto.stop()


def bucket(amazon: Amazon) -> str:
    """A bucket with a model, put there with a key that does not end."""
    import s3fs

    amazon.keys["forever"] = 1 << 30
    fs = s3fs.S3FileSystem(
        endpoint_url=amazon._behind.geturl(),
        key="forever",
        secret="x",
        use_listings_cache=False,
    )
    name = f"bucket-{uuid.uuid4().hex}"
    fs.mkdir(name)
    fs.pipe_file(f"{name}/fraud/model.onnx", WEIGHTS)
    return f"s3://{amazon.url}/{name}/fraud"


def test_a_web_identity_is_renewed_while_a_model_comes(
    fetch: Fetch, amazon: Amazon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on EKS: a token in a file, and a role."""
    url = bucket(amazon)
    (tmp_path / "token").write_text("a token of the cluster")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/models")
    assert fetch({"url": url, "digest": f"model.onnx={sha256(WEIGHTS)}"}) == {"1/model.onnx": WEIGHTS}
    assert amazon.refusals == 0
    assert amazon.assumed.count("AssumeRoleWithWebIdentity") >= 3


def test_an_assumed_role_of_a_profile_is_renewed_while_a_model_comes(
    fetch: Fetch, amazon: Amazon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = bucket(amazon)
    (tmp_path / "credentials").write_text("[base]\naws_access_key_id = forever\naws_secret_access_key = x\n")
    (tmp_path / "config").write_text(
        "[profile models]\nrole_arn = arn:aws:iam::123456789012:role/models\nsource_profile = base\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "models")
    assert fetch({"url": url, "digest": f"model.onnx={sha256(WEIGHTS)}"}) == {"1/model.onnx": WEIGHTS}
    assert amazon.refusals == 0
    assert amazon.assumed.count("AssumeRole") >= 3


def test_keys_that_nobody_renews_end_with_the_reason(
    fetch: Fetch, amazon: Amazon, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = bucket(amazon)
    amazon.keys["static"] = USES
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "static")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very secret")
    with pytest.raises(RepoAgentError, match=r"expired|ExpiredToken") as raised:
        fetch({"url": url, "digest": f"model.onnx={sha256(WEIGHTS)}"})
    assert "very secret" not in str(raised.value)
    amazon.keys["static"] = 1 << 30
    assert fetch({"url": url, "digest": f"model.onnx={sha256(WEIGHTS)}"}) == {"1/model.onnx": WEIGHTS}


def test_tokens_of_a_service_account_of_google_are_renewed_while_a_model_comes(
    fetch: Fetch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("gcsfs")
    with GoogleStorage() as storage, GoogleTokens(storage) as tokens:
        storage.objects["models/fraud/model.onnx"] = WEIGHTS
        storage.protected, storage.uses, storage.lifetime = True, USES, 60
        key = rsa.generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        account = {
            "type": "service_account",
            "project_id": "test",
            "private_key_id": "1",
            "private_key": key.decode(),
            "client_email": "models@test.example",
            "client_id": "1",
            "token_uri": f"{tokens.url}/token",
        }
        (tmp_path / "account.json").write_text(json.dumps(account))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        found = fetch({"url": "gs://models/fraud", "digest": f"model.onnx={sha256(WEIGHTS)}"})
        assert found == {"1/model.onnx": WEIGHTS}
        assert tokens.given >= 3
        assert storage.refusals == 0
