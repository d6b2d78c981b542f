"""A draft model and LoRA adapters lie in the version directory, so the signature of the model covers them as well."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from repoagent_verify.manifest import Serialization
from repoagent_verify.signing import Identity, sign

from agents.verify.tests.issuing import public_pem
from llm.tests.backend.conftest import Asker, WriteModel
from repoagent.errors import RepoAgentError
from repoagent.serving.core import ServingCore


@pytest.fixture
def signed(core: ServingCore, write_llm: WriteModel, decoder: Path, tmp_path: Path) -> Path:
    """The model ``m`` with a draft model and the adapter 7, signed whole; the version directory."""
    (tmp_path / "vendor.pem").write_bytes(public_pem(key := ec.generate_private_key(ec.SECP256R1())))
    agent = f'{{ name: "verify" parameters {{ key: "public_key" value: "file:{tmp_path}/vendor.pem" }} }}'
    parts = {"speculative_model_dir": "draft", "max_draft_len": 2, "lora": "true", "lora_prefetch_dir": "adapters"}
    model = write_llm("m", f"model_repository_agents {{ agents {agent} }}", **parts)
    version = model / "1"
    shutil.copytree(decoder, version / "draft")
    write_adapter(version / "adapters" / "7")
    (model / "model.sig").write_bytes(sign(model, Identity(key), Serialization(), signature="model.sig"))
    return version


def write_adapter(folder: Path) -> None:
    folder.mkdir(parents=True)
    weights = np.random.default_rng(1).standard_normal((1, 2 * 64 + 64 * 2)).astype(np.float16)
    np.save(folder / "model.lora_weights.npy", weights)
    np.save(folder / "model.lora_config.npy", np.array([[1, 0, 2]], np.int32))


def test_a_model_with_both_is_verified_and_served(core: ServingCore, signed: Path) -> None:
    core.load("m")
    asker = Asker(core)
    adapted = asker.ask("hello", max_tokens=10, lora_task_id=7).texts()
    assert adapted != asker.ask("hello", max_tokens=10).texts()
    report = core.report("m")
    assert report is not None
    files = sum(1 for path in signed.parent.rglob("*") if path.is_file()) - 1
    assert report.entries[0].actions[0].notes[-1].startswith(f"{files} files signed by key ")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def describe(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "comment": "mine"}))


@pytest.mark.parametrize(
    ("alter", "text"),
    [
        (
            lambda version: flip(version / "adapters/7/model.lora_weights.npy"),
            "changed after signing: 1/adapters/7/model.lora_weights.npy",
        ),
        (lambda version: write_adapter(version / "adapters/8"), "not signed: 1/adapters/8/model.lora_config.npy"),
        (lambda version: shutil.rmtree(version / "adapters"), "signed, but missing: 1/adapters/7/"),
        (
            lambda version: describe(version / "draft/genai_config.json"),
            "changed after signing: 1/draft/genai_config.json",
        ),
        (lambda version: (version / "draft/extra.onnx").write_bytes(b"x"), "not signed: 1/draft/extra.onnx"),
    ],
    ids=["weights", "another adapter", "no adapter", "draft", "in the draft"],
)
def test_what_was_changed_in_them_is_refused(
    core: ServingCore, signed: Path, alter: Callable[[Path], object], text: str
) -> None:
    alter(signed)
    with pytest.raises(RepoAgentError, match=text):
        core.load("m")
