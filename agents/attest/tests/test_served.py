"""The receipt that a server sends of what it serves."""

import base64
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from repoagent_attest.cli import attest_group

from repoagent.errors import RepoAgentError
from repoagent.loader.attesting import AttestSettings
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.senders import CollectingSender
from repoagent.serving.requests.tensor import Tensor

MODEL = """
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor("y", r.inputs()[0].as_numpy())]) for r in requests]
"""
CONFIG = """
name: "m" backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name: "y" data_type: TYPE_FP32 dims: 1 }
"""


def options_of(model: Path, tmp_path: Path, attest: AttestSettings) -> CoreOptions:
    return CoreOptions(
        repositories=(str(model.parent),),
        control_mode=ControlMode.EXPLICIT,
        repoagent_directory=None,
        workspace_directory=tmp_path / "workspace",
        cache_directory=tmp_path / "cache",
        attest=attest,
    )


def test_the_receipt_of_a_version_that_serves_agrees_with_its_model(
    tmp_path: Path, model: Path, key_file: Path, public_file: Path
) -> None:
    (model / "1/model.py").write_text(MODEL)
    (model / "config.pbtxt").write_text(CONFIG)
    options = options_of(model, tmp_path, AttestSettings(key=f"file:{key_file}", required=True))
    with ServingCore(options) as core:
        assert core.attestation("m") is None
        core.load("m")
        document = core.attestation("m")
        assert document == core.attestation("m", "1")
        assert core.attestation("m", "7") is core.attestation("other") is None
        core.unload("m")
        assert core.attestation("m") is None
    assert document is not None
    (tmp_path / "sent.json").write_bytes(document)
    words = ["verify", str(tmp_path / "sent.json"), "--public-key", str(public_file), "--model", str(model)]
    result = CliRunner().invoke(attest_group, words)
    assert result.exit_code == 0, result.output
    assert result.output.endswith(": OK\n")


def test_what_was_built_goes_when_its_receipt_cannot_be_made(
    tmp_path: Path, model: Path, key_file: Path, receipts: Path
) -> None:
    (model / "1/model.py").write_text(
        f"{MODEL}\n    def finalize(self):\n        open({str(tmp_path / 'gone')!r}, 'w').close()\n"
    )
    (model / "config.pbtxt").write_text(CONFIG)
    options = options_of(model, tmp_path, AttestSettings(key=f"file:{key_file}", directory=receipts, required=True))
    with ServingCore(options) as core:
        receipts.rmdir()
        with pytest.raises(RepoAgentError, match="the receipt of this load cannot be made"):
            core.load("m")
        assert (tmp_path / "gone").exists()


@pytest.mark.parametrize("in_answers", [False, True])
def test_answers_name_the_receipt_where_that_is_asked_for_and_spans_always(
    in_answers: bool, tmp_path: Path, model: Path, key_file: Path
) -> None:
    (model / "1/model.py").write_text(MODEL)
    (model / "config.pbtxt").write_text(CONFIG)
    options = options_of(model, tmp_path, AttestSettings(key=f"file:{key_file}", in_answers=in_answers))
    asked = Asked("m", {"x": Tensor.of(np.ones(1, np.float32))})
    with ServingCore(options) as core:
        core.load("m")
        document = json.loads(core.attestation("m") or b"")
        payload = base64.b64decode(document["summary"]["dsseEnvelope"]["payload"])
        digest = f"sha256:{hashlib.sha256(payload).hexdigest()}"
        sender = CollectingSender()
        submitted, executed = InferRequest(asked, sender), InferRequest(asked)
        core.submit(submitted)
        for request, response in ((submitted, sender.result("m")), (executed, core.infer(executed))):
            assert response.receipt == (digest if in_answers else "")
            assert request.classes is not None
            assert request.classes.receipt == digest
