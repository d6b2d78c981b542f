"""Signed and encrypted models in a bucket, served: as the repository itself, and fetched."""

import io
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from onnx import TensorProto, helper, numpy_helper
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.age.writer import encrypt_stream
from repoagent_verify.manifest import Serialization
from repoagent_verify.signing import Identity, sign

from agents.fetch.tests.servers import Hub, Registry, Tracking, sha256
from agents.verify.tests.issuing import public_pem
from repoagent.errors import RepoAgentError
from repoagent.server import ModelControlMode, Server
from tests.file_server import FileServer

CONFIG = b'backend: "onnxruntime"\nmax_batch_size: 8\n'
POLICY = """
[[rule]]
models = ["*"]
mode = "enforce"
before = [
  {fetch}
  {{ agent = "verify", parameters = {{ trust_root = "vendor"{unsigned} }} }},
  {{ agent = "decrypt", parameters = {{ identity = "env:END_TO_END_IDENTITY" }} }},
]
agents = []
backends = ["onnxruntime"]
trust_roots = {{ vendor = "vendor.pem" }}
"""


class Bucket:
    """A bucket on a server of the test, and the key of a vendor."""

    def __init__(self, endpoint: str) -> None:
        import s3fs

        self._fs = s3fs.S3FileSystem(endpoint_url=endpoint, use_listings_cache=False)
        self._name = f"bucket-{uuid.uuid4().hex}"
        self._fs.mkdir(self._name)
        self.url = f"s3://{endpoint}/{self._name}"
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.identity = X25519Identity.generate()

    def put(self, path: str, content: bytes) -> None:
        self._fs.pipe_file(f"{self._name}/{path}", content)

    def release(self, scratch: Path, factor: float, config: bytes | None) -> dict[str, bytes]:
        """The files of a model that multiplies by ``factor``, encrypted and then signed."""
        sealed = io.BytesIO()
        encrypt_stream(io.BytesIO(onnx_model(factor)), sealed, [self.identity.recipient], threads=1)
        files = {"1/model.onnx.age": sealed.getvalue(), **({"config.pbtxt": config} if config else {})}
        for path, content in files.items():
            (scratch / path).parent.mkdir(parents=True, exist_ok=True)
            (scratch / path).write_bytes(content)
        files["model.sig"] = sign(scratch, Identity(self.key), Serialization(), signature="model.sig")
        return files


def onnx_model(factor: float) -> bytes:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])
    weights = numpy_helper.from_array(np.array([factor], np.float32), "W")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "W"], ["y"])], "m", [value], [result], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


@pytest.fixture
def bucket(s3_endpoint: str, s3_credentials: None, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    bucket = Bucket(s3_endpoint)
    monkeypatch.setenv("END_TO_END_IDENTITY", str(bucket.identity.export()))
    return bucket


def serve(repository: str, policy: str, bucket: Bucket, tmp_path: Path) -> Server:
    (tmp_path / "vendor.pem").write_bytes(public_pem(bucket.key))
    (tmp_path / "policy.toml").write_text(policy)
    return Server(
        model_repository=repository,
        model_control_mode=ModelControlMode.EXPLICIT,
        agent_policy=str(tmp_path / "policy.toml"),
        agent_cache_directory=str(tmp_path / "cache"),
        workspace_directory=str(tmp_path / "workspace"),
        allow_swap=True,
    )


def answer(server: Server) -> float:
    model = server.load("fraud")
    return float(np.asarray(model.run({"x": np.ones((1, 4), np.float32)})["y"])[0, 0])


@pytest.mark.slow
def test_a_repository_in_a_bucket_with_a_signed_and_encrypted_model_is_served(bucket: Bucket, tmp_path: Path) -> None:
    for path, content in bucket.release(tmp_path / "release", 3, CONFIG).items():
        bucket.put(f"models/fraud/{path}", content)
    policy = POLICY.format(fetch="", unsigned="")
    with serve(f"{bucket.url}/models", policy, bucket, tmp_path) as server:
        assert answer(server) == 3
        bucket.put("models/fraud/1/model.onnx.age", os.urandom(300))
        with pytest.raises(RepoAgentError, match=r"changed after signing: 1/model\.onnx\.age"):
            server.load("fraud")
    kept = [path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert not [content for content in kept if b"Mul" in content]  # the plaintext of the model


@pytest.mark.slow
def test_a_signed_and_encrypted_model_is_fetched_verified_decrypted_and_served(bucket: Bucket, tmp_path: Path) -> None:
    files = bucket.release(tmp_path / "release", 5, None)
    for path, content in files.items():
        bucket.put(f"vendor/{path}", content)
    listing = "".join(f"{sha256(content)[7:]}  {path}\n" for path, content in files.items()).encode()
    bucket.put("vendor/SHA256SUMS", listing)
    (tmp_path / "repository" / "fraud").mkdir(parents=True)
    (tmp_path / "repository" / "fraud" / "config.pbtxt").write_bytes(CONFIG)
    fetch = (
        f'{{ agent = "fetch", parameters = [["url", "{bucket.url}/vendor/"], ["into", "."], '
        f'["manifest", "SHA256SUMS={sha256(listing)}"]] }},'
    )
    unsigned = ', unsigned = "*"'
    with serve(str(tmp_path / "repository"), POLICY.format(fetch=fetch, unsigned=unsigned), bucket, tmp_path) as server:
        assert answer(server) == 5
        bucket.put("vendor/1/model.onnx.age", os.urandom(len(files["1/model.onnx.age"])))
        (tmp_path / "repository" / "fraud" / "config.pbtxt").write_bytes(CONFIG + b"# changed\n")
        assert answer(server) == 5  # the bytes that are pinned are here


# A bucket of more objects than one listing holds.

Fetch = Callable[..., dict[str, bytes]]
COUNT = 12


@pytest.fixture
def full_bucket(s3_endpoint: str, s3_credentials: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """A listing of S3 has a thousand objects at most; of this server, five."""
    import s3fs
    from moto.backends import get_backend  # takes a second, which a collection need not spend

    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "5")
    name = f"bucket-{uuid.uuid4().hex}"
    s3fs.S3FileSystem(endpoint_url=s3_endpoint, use_listings_cache=False).mkdir(name)
    backend = get_backend("s3")["123456789012"]["aws"]  # the server runs in this process
    for number in range(COUNT):
        backend.put_object(name, f"m/{number % 6}/{number}", b"%d" % number)
    return f"s3://{s3_endpoint}/{name}/m"


@pytest.mark.slow
def test_all_of_them_come(fetch: Fetch, full_bucket: str) -> None:
    expected = {f"1/{number % 6}/{number}": b"%d" % number for number in range(COUNT)}
    assert fetch({"url": full_bucket, "floating": "true"}) == expected


# Offline no server is asked, whatever the source; what is pinned comes from the cache.

TITLE = "org.opencontainers.image.title"
PINNED = {"digest": f"model.onnx={sha256(b'weights')}"}
FLOATING = {"floating": "true"}


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, tuple[str, str, list[FileServer]]]]:
    """Scheme -> the model by a name that may change, the same pinned, and who is asked."""
    with Hub() as hub, Registry() as registry, Tracking() as tracking, FileServer() as web:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking.url)
        monkeypatch.setenv("REPOAGENT_FETCH_HOSTS", hub.large.host)
        hub.models["acme/m"] = {"model.onnx": b"weights"}
        tracking.artifacts = {"1/models/m-1/artifacts/model.onnx": b"weights"}
        web.files["/m/model.onnx"] = b"weights"
        digest = registry.push("m", [registry.layer("m", "a/b", b"weights", **{TITLE: "model.onnx"})])
        yield {
            "hf": ("hf://acme/m", f"hf://acme/m@{hub.commit}", [hub, hub.large]),
            "oci": (f"oci://{registry.host}/m:v1", f"oci://{registry.host}/m@{digest}", [registry]),
            "models": ("models:/fraud/3", "models:/fraud/3", [tracking]),
            "http": (f"{web.url}/m/model.onnx", f"{web.url}/m/model.onnx", [web]),
        }


@pytest.mark.parametrize("scheme", ["hf", "oci", "models", "http"])
def test_a_pinned_model_comes_from_the_cache_and_nothing_else_is_asked_for(
    fetch: Fetch,
    servers: dict[str, tuple[str, str, list[FileServer]]],
    scheme: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    floating, pinned, asked = servers[scheme]
    given = PINNED if pinned == floating else {}
    expected = {"1/model.onnx": b"weights"}
    assert fetch({"url": pinned, **given}) == expected
    assert fetch({"url": floating, **FLOATING}) == expected
    before = [len(server.requests) for server in asked]
    monkeypatch.setenv("REPOAGENT_OFFLINE", "1")
    assert fetch({"url": pinned, **given}) == expected
    with pytest.raises(RepoAgentError, match=r"the server is offline \(REPOAGENT_OFFLINE\)"):
        fetch({"url": floating, **FLOATING})
    assert [len(server.requests) for server in asked] == before


@pytest.mark.parametrize("scheme", ["hf", "oci", "models", "http"])
def test_what_was_pinned_by_digests_comes_from_the_cache(
    fetch: Fetch,
    servers: dict[str, tuple[str, str, list[FileServer]]],
    scheme: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, _, asked = servers[scheme]
    fetch({"url": url, **PINNED})
    before = [len(server.requests) for server in asked]
    monkeypatch.setenv("REPOAGENT_OFFLINE", "1")
    assert fetch({"url": url, **PINNED}) == {"1/model.onnx": b"weights"}
    assert [len(server.requests) for server in asked] == before
