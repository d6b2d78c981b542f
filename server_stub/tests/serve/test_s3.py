"""A repository in S3, served through agents; changes in it are followed."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyrage
import pytest

from tests.relay import Relay

if TYPE_CHECKING:
    from server_stub.tests.serve.conftest import World

OURS: Final = pyrage.x25519.Identity.generate()
ENVIRONMENT: Final = {
    "AWS_ACCESS_KEY_ID": "test-id",
    "AWS_SECRET_ACCESS_KEY": "test-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "127.0.0.1",
    "TEST_IDENTITY": str(OURS),
}


class Bucket:
    """A bucket on a real S3 server, and what fills it: a filesystem of the test's own."""

    def __init__(self, endpoint: str) -> None:
        import s3fs

        self.endpoint = endpoint
        self._fs = s3fs.S3FileSystem(
            key="test-id",
            secret="test-secret",
            endpoint_url=endpoint,
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        self._fs.mkdir("bucket")

    @property
    def url(self) -> str:
        """The repository, in Triton's spelling."""
        return f"s3://{self.endpoint}/bucket/models"

    def upload(self, directory: Path, folder: str = "models") -> None:
        """Put the files of a model there; ``config.pbtxt``, which makes it whole, at the end."""
        files = [path for path in directory.rglob("*") if path.is_file()]
        for path in sorted(files, key=lambda path: path.name == "config.pbtxt"):
            place = path.relative_to(directory.parent)
            self._fs.pipe_file(f"bucket/{folder}/{place}", path.read_bytes())

    def remove(self, model: str) -> None:
        """Remove a model."""
        self._fs.rm(f"bucket/models/{model}", recursive=True)


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    from moto.server import ThreadedMotoServer  # takes a second, which a collection need not spend

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    before = os.environ.get("NO_PROXY")
    os.environ["NO_PROXY"] = "127.0.0.1"
    yield Bucket(f"http://{host}:{port}")
    os.environ.pop("NO_PROXY")
    if before is not None:
        os.environ["NO_PROXY"] = before
    server.stop()


def _guarded(world: "World", name: str, operation: str = "Neg") -> Path:
    """A model that arrives checksummed and encrypted."""
    directory = world.model(name, operation=operation)
    plain = directory / "1" / "model.onnx"
    content = plain.read_bytes()
    cipher = pyrage.encrypt(content, [OURS.to_public()])
    plain.with_suffix(".onnx.age").write_bytes(cipher)
    plain.unlink()
    chain: list[tuple[str, dict[str, str]]] = [
        ("checksum", {"SHA256:1/model.onnx.age": hashlib.sha256(cipher).hexdigest()}),
        ("decrypt", {"identity": "env:TEST_IDENTITY"}),
        ("checksum", {"SHA256:1/model.onnx": hashlib.sha256(content).hexdigest()}),
        ("agent", {}),
    ]
    world.configure(name, chain)
    return directory


def test_models_in_s3_go_through_their_agents_and_changes_are_followed(world: "World", bucket: Bucket) -> None:
    world.agent("agent")
    bucket.upload(world.models / "plain")
    bucket.upload(_guarded(world, "secret"))
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1")
    server = world.start(*flags, repository=bucket.url, env=ENVIRONMENT).wait_ready()
    assert server.answer("plain") == server.answer("secret") == [1, -2, 3, -4]
    assert server.load("plain").status_code == 503
    life = ["model_initialize", "LOAD", "LOAD_COMPLETE"]
    end = ["UNLOAD", "UNLOAD_COMPLETE", "model_finalize"]
    assert world.calls("secret") == [f"agent {call}" for call in life]

    bucket.upload(world.model("plain", operation="Abs"))
    bucket.upload(world.model("added", [("agent", {})]))
    server.until(lambda: server.answer("plain") == [1, 2, 3, 4], "the changed model")
    server.until(lambda: len(world.calls("added")) == 3, "the new model")
    assert server.answer("added") == [1, -2, 3, -4]
    assert world.calls("secret") == [f"agent {call}" for call in life]

    bucket.remove("added")
    server.until(lambda: not server.ask("added").is_success, "the end of the removed model")
    server.until(lambda: len(world.calls("added")) == 6, "its agents")
    assert world.calls("added") == [f"agent {call}" for call in life + end]

    (world.models / "secret" / "1" / "model.onnx.age").write_bytes(b"exchanged")
    bucket.upload(world.models / "secret")
    server.until(lambda: "Mismatched SHA256 hash for file 1/model.onnx.age" in server.log, "the refused change")
    assert server.answer("secret") == [1, -2, 3, -4]
    assert server.stop() == 0
    assert world.calls("secret") == [f"agent {call}" for call in life + end]
    assert world.leftovers(server) == []


def test_a_bucket_that_is_not_there_ends_the_start_with_its_name(world: "World", bucket: Bucket) -> None:
    server = world.start(repository=f"s3://{bucket.endpoint}/nosuch/models", env=ENVIRONMENT)
    assert server.ended() == 1
    assert "nosuch/models" in server.log.splitlines()[-1]


def test_a_server_serves_and_ends_well_while_the_store_stalls(world: "World", bucket: Bucket) -> None:
    directory = world.model("far")
    bucket.upload(directory, "others")
    shutil.rmtree(directory)
    world.model("near")
    relay = Relay(bucket.endpoint)
    world.stack.callback(relay.close)
    far = f"--model-repository=s3://{relay.endpoint}/bucket/others"
    server = world.serve(far, "--repository-timeout=5", env=ENVIRONMENT)
    relay.stall()
    assert "does not answer within 5 s" in server.index()["far"]["reason"]
    assert server.load("near").status_code == 200
    assert server.answer("near") == [1, -2, 3, -4]
    assert server.stop() == 0
