"""Each replica signs a receipt of what it loads, and the ingress sends that of one that serves."""

import hashlib
import json
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.service import SERVICE

from deploy.ray.tests.kit import PATIENCE, App, World
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


def test_answers_over_grpc_name_the_receipt(app: App) -> None:
    """Behind the answer: Ray carries no fields before it. In a stream, each message has it as a parameter."""
    request = pb.ModelInferRequest(model_name="m")
    request.inputs.add(name="X", datatype="FP32", shape=[1, 2]).contents.fp32_contents[:] = [1, 2]
    with grpc.insecure_channel(app.cluster.grpc) as channel:
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer", pb.ModelInferRequest.SerializeToString)
        answer, done = call.with_call(request, timeout=PATIENCE)
        expected = f"sha256:{_digest(_receipt(app).json())}"
        assert pb.ModelInferResponse.FromString(answer).model_name == "m"
        assert dict(done.trailing_metadata())["repoagent-attestation"] == expected
        call = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer", pb.ModelInferRequest.SerializeToString)
        (message,) = map(pb.ModelStreamInferResponse.FromString, call(iter([request]), timeout=PATIENCE))
        assert message.infer_response.parameters["repoagent-attestation"].string_param == expected
        request.inputs[0].shape[:] = [1, 3]
        refused = channel.unary_unary(f"/{SERVICE}/ModelInfer", pb.ModelInferRequest.SerializeToString)
        with pytest.raises(grpc.RpcError) as caught:
            refused(request, timeout=PATIENCE)
        assert "repoagent-attestation" not in dict(caught.value.trailing_metadata())
