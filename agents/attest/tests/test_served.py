"""The receipt that a server sends of what it serves."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from repoagent_attest.cli import attest_group

from repoagent.errors import RepoAgentError
from repoagent.loader.attesting import AttestSettings
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore

MODEL = """
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse([]) for _ in requests]
"""
CONFIG = """
name: "m" backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name: "y" data_type: TYPE_FP32 dims: 1 }
"""


def test_the_receipt_of_a_version_that_serves_agrees_with_its_model(
    tmp_path: Path, model: Path, key_file: Path, public_file: Path
) -> None:
    (model / "1/model.py").write_text(MODEL)
    (model / "config.pbtxt").write_text(CONFIG)
    options = CoreOptions(
        repositories=(str(model.parent),),
        control_mode=ControlMode.EXPLICIT,
        repoagent_directory=None,
        workspace_directory=tmp_path / "workspace",
        cache_directory=tmp_path / "cache",
        attest=AttestSettings(key=f"file:{key_file}", required=True),
    )
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
    options = CoreOptions(
        repositories=(str(model.parent),),
        control_mode=ControlMode.EXPLICIT,
        repoagent_directory=None,
        workspace_directory=tmp_path / "workspace",
        cache_directory=tmp_path / "cache",
        attest=AttestSettings(key=f"file:{key_file}", directory=receipts, required=True),
    )
    with ServingCore(options) as core:
        receipts.rmdir()
        with pytest.raises(RepoAgentError, match="the receipt of this load cannot be made"):
            core.load("m")
        assert (tmp_path / "gone").exists()
