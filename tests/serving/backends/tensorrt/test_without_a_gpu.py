"""Configurations completed from the statement beside a plan, where no plan can be opened."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from repoagent.config import ModelConfig, normalize, read_text
from repoagent.engines.probe import Findings
from repoagent.engines.protocol import EngineOptions, TensorSpec
from repoagent.errors import InvalidArgumentError, UnsupportedError
from repoagent.serving.backends.tensorrt.backend import TensorRtBackend
from repoagent.storage.files.files import MemoryFiles
from tests.engines.models import matmul
from tests.engines.standin import StandInPlatform
from tests.serving.backends.tensorrt.kit import load, plan, rows

PROBLEM = "CUDA finds no usable driver"
PLAN = plan(matmul(), rows(1, 2, x=(4,)), rows(3, 16, x=(4,)))


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repoagent.engines.cuda.probe", lambda: Findings("tensorrt", "11.1", (), PROBLEM))


def described(content: bytes) -> dict[str, Any]:
    """What a build would have written of a plan of the stand-in."""
    platform = StandInPlatform()
    engine = platform.open(content, EngineOptions())
    profiles = [
        {"shapes": {name: [list(one.least), list(one.best), list(one.most)] for name, one in profile.shapes.items()}}
        for profile in engine.profiles
    ]
    return {
        "tensors": [_tensor(one) for one in engine.tensors],
        "profiles": [{**profile, "values": {}} for profile in profiles],
    }


def _tensor(one: TensorSpec) -> dict[str, Any]:
    return {
        "name": one.name,
        "is_input": one.is_input,
        "element": one.element.name,
        "shape": list(one.shape),
        "on_host": one.on_host,
    }


def statement(content: bytes, annotations: dict[str, Any] | None = None) -> bytes:
    digest = {"sha256": hashlib.sha256(content).hexdigest()}
    subject = {"name": "model.plan", "digest": digest, "annotations": annotations or described(content)}
    return json.dumps({"subject": [subject]}).encode()


def completed(files: dict[str, bytes], config: str = "") -> ModelConfig:
    def refuse() -> Path:
        raise AssertionError("nothing here may be written to a disk")

    made = normalize(read_text(f'backend: "tensorrt" {config}'), model_name="m", gpus=None)
    TensorRtBackend().auto_complete(made, MemoryFiles(files, refuse), 1)
    return made


def test_a_configuration_is_completed_as_the_plan_itself_would() -> None:
    made = completed({"1/model.plan": PLAN, "1/model.plan.intoto.json": statement(PLAN)})
    opened, model = load(PLAN)
    model.close()
    assert made.max_batch_size == opened.max_batch_size == 16
    assert list(made.input) == list(opened.input)
    assert list(made.output) == list(opened.output)


def test_without_a_statement_the_refusal_names_it() -> None:
    with pytest.raises(UnsupportedError) as caught:
        completed({"1/model.plan": PLAN})
    assert PROBLEM in str(caught.value)
    assert "the configuration does not name them, and 1/model.plan.intoto.json, which the agent" in str(caught.value)


def test_a_statement_of_another_plan_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"model\.plan has changed since it was built"):
        completed({"1/model.plan": PLAN + b"x", "1/model.plan.intoto.json": statement(PLAN)})


def test_a_statement_that_describes_nothing_is_refused_with_what_is_wrong_here() -> None:
    with pytest.raises(InvalidArgumentError, match=rf"{PROBLEM}\. model\.plan\.intoto\.json does not describe"):
        completed({"1/model.plan": PLAN, "1/model.plan.intoto.json": statement(PLAN, {"letters": 26})})


def test_dimensions_that_vary_without_a_profile_take_no_default_from_it() -> None:
    annotations = described(PLAN) | {"profiles": []}
    made = completed({"1/model.plan": PLAN, "1/model.plan.intoto.json": statement(PLAN, annotations)})
    assert made.max_batch_size == 1


def test_a_complete_configuration_needs_neither_gpu_nor_statement() -> None:
    config = """
      input { name: "x" data_type: TYPE_FP32 dims: [4] } output { name: "y" data_type: TYPE_FP32 dims: [3] }
      max_batch_size: 4
    """
    assert completed({"1/model.plan": PLAN}, config).max_batch_size == 4
