"""Plans through the agent ``convert``: in a loader, with the real builder."""

import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from repoagent.config import normalize, read_text
from repoagent.config.model_config_pb2 import TYPE_FP32
from repoagent.engines.plan_description import check_digest
from repoagent.engines.plan_header import PlanHeader
from repoagent.engines.probe import Findings
from repoagent.errors import CancelledError
from repoagent.serving.backends.tensorrt.backend import TensorRtBackend
from repoagent.storage.files.files import MemoryFiles
from repoagent.storage.repositories.sources import open_source
from repoagent.testing import AgentHarness
from tests.engines import models
from tests.engines.builder.plans import need_tensorrt

pytestmark = pytest.mark.slow

CONVERT = 'model_repository_agents { agents [ { name: "convert" PARAMETERS } ] }'
TO_PLAN = CONVERT.replace("PARAMETERS", 'parameters { key: "to" value: "tensorrt" }')


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[AgentHarness]:
    need_tensorrt()
    with AgentHarness(tmp_path / "harness") as harness:
        yield harness


def model(directory: Path, config: str, content: bytes = b"") -> Path:
    root = directory / "repository" / "m"
    (root / "1").mkdir(parents=True)
    (root / "1" / "model.onnx").write_bytes(content or models.matmul())
    (root / "config.pbtxt").write_text(config)
    return root


def test_a_backend_gets_the_plan_its_statement_and_a_configuration_that_names_it(
    harness: AgentHarness, tmp_path: Path
) -> None:
    outcome = harness.run(model(tmp_path, f'backend: "onnxruntime" max_batch_size: 8 {TO_PLAN}'))
    assert outcome.error is None
    assert set(outcome.files) == {"1/model.plan", "1/model.plan.intoto.json", "config.pbtxt"}
    config = read_text(outcome.config)
    assert (config.backend, config.platform, config.default_model_filename) == ("tensorrt", "", "model.plan")
    header = PlanHeader.of(outcome.files["1/model.plan"])
    (subject,) = json.loads(outcome.files["1/model.plan.intoto.json"])["subject"]
    assert subject["name"] == "model.plan"
    assert subject["digest"]["sha256"] == hashlib.sha256(outcome.files["1/model.plan"]).hexdigest()
    check_digest(outcome.files["1/model.plan"], "model.plan", outcome.files["1/model.plan.intoto.json"])
    assert subject["annotations"]["flavour"] == header.flavour.value
    assert subject["annotations"]["profiles"] == [{"shapes": {"x": [[1, 4], [8, 4], [8, 4]]}, "values": {}}]


def test_a_second_load_takes_the_plan_from_the_cache_and_another_option_does_not(
    harness: AgentHarness, tmp_path: Path
) -> None:
    root = model(tmp_path, f"max_batch_size: 8 {TO_PLAN}")
    for text, kept in (
        (TO_PLAN, 1),
        (TO_PLAN, 1),
        (TO_PLAN.replace("} }", '} parameters { key: "tf32" value: "0" } }'), 2),
    ):
        (root / "config.pbtxt").write_text(f"max_batch_size: 8 {text}")
        assert harness.run(root).error is None
        assert len(list(harness.cache.glob("objects/*"))) == kept


def test_the_statement_completes_a_configuration_where_no_plan_can_be_opened(
    harness: AgentHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repoagent.engines.cuda.probe", lambda: Findings("tensorrt", "11.1", (), "no driver"))
    outcome = harness.run(model(tmp_path, f'backend: "onnxruntime" max_batch_size: 8 {TO_PLAN}'))
    config = read_text(outcome.config)
    config.max_batch_size = 0
    config = normalize(config, model_name="m", gpus=None)
    TensorRtBackend().auto_complete(config, MemoryFiles(outcome.files, Path), 1)
    assert config.max_batch_size == 8
    assert [(one.name, one.data_type, list(one.dims)) for one in config.input] == [("x", TYPE_FP32, [4])]
    assert [(one.name, one.data_type, list(one.dims)) for one in config.output] == [("y", TYPE_FP32, [3])]


def test_an_accelerator_of_the_configuration_goes_the_same_way_and_is_done_with(
    harness: AgentHarness, tmp_path: Path
) -> None:
    accelerator = """
optimization { execution_accelerators { gpu_execution_accelerator {
  name: "tensorrt" parameters { key: "max_workspace_size_bytes" value: "67108864" }
} } }
"""
    outcome = harness.run(model(tmp_path, f"max_batch_size: 2 {accelerator} {CONVERT.replace('PARAMETERS', '')}"))
    assert outcome.error is None
    assert "1/model.plan" in outcome.files
    config = read_text(outcome.config)
    assert config.backend == "tensorrt"
    assert not config.optimization.HasField("execution_accelerators")


def test_an_unsupported_operator_is_named_with_the_model(harness: AgentHarness, tmp_path: Path) -> None:
    content = models.twice().replace(b"Add", b"Odd")
    outcome = harness.run(model(tmp_path, f"max_batch_size: 2 {TO_PLAN}", content))
    text = str(outcome.error)
    assert "agent 'convert': 1/model.onnx: TensorRT cannot take the model: " in text
    assert "the operator Odd is not supported" in text
    assert outcome.left == ()
    assert not list(harness.cache.glob("objects/*"))


def test_a_load_that_is_cancelled_half_way_ends_the_build(harness: AgentHarness, tmp_path: Path) -> None:
    cancelled, seen = threading.Event(), []

    def progress(step: object) -> None:
        seen.append(step)
        # At the first word of the child: the build of a small model reports no step before it is over.
        if getattr(step, "what", "") == "reading the model":
            cancelled.set()

    source = open_source("m", str(model(tmp_path, f"max_batch_size: 2 {TO_PLAN}")))
    with pytest.raises(CancelledError):
        harness.loader.load(source, cancelled=cancelled.is_set, on_progress=progress)
    assert harness.left_over() == []
    assert not list(harness.cache.glob("objects/.*"))
    assert not list(harness.cache.glob("objects/*"))
