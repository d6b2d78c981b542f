"""Each replica signs a receipt of what it loads, and the ingress sends that of one that serves."""

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import tritonclient.grpc
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from deploy.ray.tests.kit import PATIENCE, App, World, tensor
from repoagent.api.envelopes import verify

_KEY = ec.generate_private_key(ec.SECP256R1())


@pytest.fixture(scope="module")
def app(world: World) -> App:
    world.model("m", 1.0, {})
    key: Path = world.root / "receipts.key"
    key.write_bytes(_KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (world.root / "receipts").mkdir()
    attest = {"key": f"file:{key}", "directory": str(world.root / "receipts"), "in_answers": True, "required": True}
    return world.run(min_replicas=2, options={"attest": attest})


def _receipt(app: App, path: str = "m") -> httpx.Response:
    return httpx.get(f"{app.url}/v2/models/{path}/attestation", timeout=PATIENCE)


def test_the_receipt_is_that_of_a_replica_that_serves(app: App, world: World) -> None:
    assert _receipt(app).status_code == 404, "no replica has it"
    answer = app.ask("m")
    assert answer.status_code == 200
    document: dict[str, Any] = _receipt(app).raise_for_status().json()
    assert _receipt(app, "m/versions/1").json() == document
    assert _receipt(app, "m/versions/2").status_code == 404
    summary = json.loads(verify(document["summary"], _KEY.public_key()))
    assert summary["predicate"]["verificationResult"] == "PASSED"
    (written,) = (world.root / "receipts").glob("*.vsa.json")
    assert json.loads(written.read_text()) == document["summary"]
    assert answer.headers["repoagent-attestation"] == f"sha256:{_digest(document)}"
    assert httpx.post(f"{app.url}/v2/repository/models/m/unload", json={}, timeout=PATIENCE).status_code == 200
    assert _receipt(app).status_code == 404


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(verify(document["summary"], _KEY.public_key())).hexdigest()


def test_inference_over_grpc_goes_on_where_answers_name_receipts(app: App) -> None:
    with app.grpc() as client:
        assert client.infer("m", [tensor(tritonclient.grpc)]).as_numpy("Y").tolist() == [[2.0, 3.0]]
