"""Every answer that a model gives names the receipt of its load, over each way in and in each process."""

import base64
import hashlib
import json
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from repoagent_server.shared.request_id import RECEIPT
from tritonclient.grpc import service_pb2, service_pb2_grpc

from server_stub.tests.serve.test_processes import processes as workers
from tests.serving.tracing.test_spans import Collector, attributes, collector

if TYPE_CHECKING:
    from server_stub.tests.serve.conftest import Server, World

__all__ = ["collector"]
_HEADER = RECEIPT.decode()
_ECHO = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
            answer = pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)])
            request.get_response_sender().send(answer, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_CONFIG = """
backend: "python" model_transaction_policy { decoupled: true }
input [
  { name: "text_input" data_type: TYPE_STRING dims: 1 },
  { name: "sampling_parameters" data_type: TYPE_STRING dims: 1 optional: true },
  { name: "stream" data_type: TYPE_BOOL dims: 1 optional: true }
]
output { name: "text_output" data_type: TYPE_STRING dims: 1 }
parameters { key: "EXECUTION" value { string_value: "in-process" } }
"""
_ENSEMBLE = """
platform: "ensemble"
input { name: "X" data_type: TYPE_FP32 dims: [-1, 4] } output { name: "Y" data_type: TYPE_FP32 dims: [-1, 4] }
ensemble_scheduling { step { model_name: "plain" model_version: -1
  input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } }
"""
_ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v2/models/echo/generate", {"text_input": "x"}),
    ("/v2/models/echo/generate_stream", {"text_input": "x"}),
    ("/v1/completions", {"model": "echo", "prompt": ["x", "y"]}),
    ("/v1/completions", {"model": "echo", "prompt": "x", "stream": True}),
]


def attest_flags(world: "World") -> tuple[str, ...]:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (world.root / "key.pem").write_bytes(key.private_bytes(*pem))
    return f"--attest-key=file:{world.root / 'key.pem'}", "--attest-header"


@pytest.mark.parametrize("processes", [1, 3])
def test_spans_of_every_process_name_the_receipt_of_what_answered(
    world: "World", collector: Collector, processes: int
) -> None:
    traces = ("rate=1", "level=TIMESTAMPS", "mode=opentelemetry", f"opentelemetry,url={collector.url}")
    flags = (*attest_flags(world), *(f"--trace-config={each}" for each in traces))
    server = world.serve(f"--processes={processes}", *flags)
    assert server.load("plain").status_code == 200, server.log
    named = {server.ask("plain", headers={"Connection": "close"}).headers[_HEADER] for _ in range(12)}
    assert server.stop() == 0
    spans = [span for span in collector.resource()[1] if span.name == "plain"]
    assert len(spans) == 12, server.log
    assert {attributes(span)["repoagent.attestation"] for span in spans} == named
    assert len(named) == 1


@pytest.mark.parametrize("processes", [1, 3])
def test_answers_of_all_ways_in_name_the_receipt_of_their_load(world: "World", processes: int) -> None:
    for name, config in (("echo", _CONFIG), ("both", _ENSEMBLE)):
        (world.models / name / "1").mkdir(parents=True, exist_ok=True)
        (world.models / name / "config.pbtxt").write_text(config)
    (world.models / "echo" / "1" / "model.py").write_text(_ECHO)
    flags = *attest_flags(world), "--grpc-port=0", "--allow-openai"
    server = world.serve(f"--processes={processes}", *flags)
    for name in ("plain", "both", "echo"):
        assert server.load(name).status_code == 200, server.log
    before = server.ask("both").headers[_HEADER]
    assert server.load("plain").status_code == 200  # the ensemble is built anew over it, by no load of its own
    receipts = {name: server.ask(name).headers[_HEADER] for name in ("plain", "both")}
    assert receipts["both"] == before
    assert receipts["plain"] != before
    for _ in range(4):  # of a new connection each, so that all processes answer
        for path, body in _ASKED:
            answer = server.http.post(path, json=body, headers={"Connection": "close"})
            assert answer.status_code == 200, answer.text
            assert receipts.setdefault("echo", answer.headers[_HEADER]) == answer.headers[_HEADER]
    for name, digest in receipts.items():
        summary = server.http.get(f"/v2/models/{name}/attestation").json()["summary"]
        payload = base64.b64decode(summary["dsseEnvelope"]["payload"])
        assert digest == f"sha256:{hashlib.sha256(payload).hexdigest()}"
    refused = server.http.post("/v2/models/plain/infer", json={"inputs": []})
    assert refused.status_code == 400
    assert _HEADER not in refused.headers
    with grpc.insecure_channel(f"127.0.0.1:{server.port('grpc')}") as channel:
        contents = service_pb2.InferTensorContents(bytes_contents=[b"x"])
        tensor = service_pb2.ModelInferRequest.InferInputTensor(
            name="text_input", datatype="BYTES", shape=[1], contents=contents
        )
        asked = service_pb2.ModelInferRequest(model_name="echo", inputs=[tensor])
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        (answer,) = stub.ModelStreamInfer(iter([asked]), timeout=60)
        assert answer.infer_response.parameters[_HEADER].string_param == receipts["echo"]
    assert server.stop() == 0


def _attested(server: "Server", name: str) -> dict[str, dict[str, Any]]:
    """The statements of the receipt that the server sends, and the digest by which answers name it."""
    sent = server.http.get(f"/v2/models/{name}/attestation")
    assert sent.status_code == 200, sent.text
    payloads = {part: base64.b64decode(bundle["dsseEnvelope"]["payload"]) for part, bundle in sent.json().items()}
    digest = {"named": f"sha256:{hashlib.sha256(payloads['summary']).hexdigest()}"}
    return {**{part: json.loads(text)["predicate"] for part, text in payloads.items()}, "digest": digest}


@pytest.mark.parametrize("processes", [1, 2])
def test_a_load_without_a_receipt_names_none_of_an_earlier_load(world: "World", processes: int) -> None:
    """The directory goes while the server runs; versions that need not be loaded again serve on."""
    (world.root / "receipts").mkdir(exist_ok=True)
    server = world.serve(
        f"--processes={processes}", *attest_flags(world), f"--attest-directory={world.root / 'receipts'}"
    )
    world.model("again")
    assert server.load("again").status_code == 200, server.log
    assert server.ask("again").headers[_HEADER] == _attested(server, "again")["digest"]["named"]
    shutil.rmtree(world.root / "receipts")
    world.configure("again", config="instance_group { count: 2 }")
    assert server.load("again").status_code == 200, server.log
    assert server.http.get("/v2/models/again/attestation").status_code == 404
    for _ in range(4):
        answer = server.ask("again", headers={"Connection": "close"})
        assert (answer.status_code, answer.headers.get(_HEADER)) == (200, None)
    assert server.stop() == 0


def _receipts(directory: Path, more_than: int) -> bool:
    return len(list(directory.glob("killed-*.vsa.json"))) > more_than


def _serves(server: "Server", size: int) -> bool:
    """Whether there are two workers, and the model has batches of ``size``."""
    with suppress(httpx.TransportError):
        config = server.http.get("/v2/models/killed/config").json()
        return len(workers(server)) == 2 and config.get("max_batch_size") == size
    return False


def test_a_worker_that_is_killed_between_a_receipt_and_serving_makes_none_lie(world: "World") -> None:
    """Each receipt was made before its workers were asked to serve; one of them goes at that moment."""
    world.model("killed")
    receipts = world.root / "receipts"
    receipts.mkdir(exist_ok=True)
    server = world.serve("--processes=2", *attest_flags(world), f"--attest-directory={receipts}")
    for turn in range(3):
        world.configure("killed", config=f"max_batch_size: {turn + 1}")
        with ThreadPoolExecutor(1) as pool:
            loading = pool.submit(server.load, "killed")
            server.until(partial(_receipts, receipts, turn), "a receipt")
            os.kill(workers(server)[turn % 2], signal.SIGKILL)
            with suppress(httpx.TransportError):  # the request for the load may be that worker's
                loading.result()
        server.until(partial(_serves, server, turn + 1), "the model of this turn")
        assert not _receipts(receipts, turn + 1)
        expected = _attested(server, "killed")
        assert expected["summary"]["verificationResult"] == "PASSED"
        for _ in range(6):
            named = server.ask("killed", headers={"Connection": "close"})
            assert (named.status_code, named.headers.get(_HEADER)) == (200, expected["digest"]["named"])
    assert server.stop() == 0


@pytest.mark.parametrize("processes", [1, 2])
def test_of_loads_at_once_with_configurations_of_their_own_the_receipt_is_that_of_the_one_that_serves(
    world: "World", processes: int
) -> None:
    server = world.serve(f"--processes={processes}", *attest_flags(world), "--allow-load-parameters")
    url = "/v2/repository/models/plain/load"

    def load(size: int) -> int:
        config = json.dumps({"backend": "onnxruntime", "max_batch_size": size})
        return server.http.post(url, json={"parameters": {"config": config}}).status_code

    def stated() -> str:
        attested = _attested(server, "plain")
        assert "REPOAGENT_OWN_CONFIGURATION" not in attested["summary"]["verifiedLevels"]
        assert server.ask("plain").headers[_HEADER] == attested["digest"]["named"]
        return str(attested["details"]["load"]["override_sha256"])

    sizes = {}
    for size in (1, 2, 3):
        assert load(size) == 200, server.log
        sizes[stated()] = size
    for _ in range(3):
        with ThreadPoolExecutor(6) as pool:
            assert 200 in list(pool.map(load, (1, 2, 3, 3, 2, 1)))
        assert server.http.get("/v2/models/plain/config").json()["max_batch_size"] == sizes[stated()]
    assert server.load("plain").status_code == 200
    assert "REPOAGENT_OWN_CONFIGURATION" in _attested(server, "plain")["summary"]["verifiedLevels"]
    assert server.stop() == 0
