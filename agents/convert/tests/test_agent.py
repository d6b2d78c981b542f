"""The agent in a loader: what a backend gets, and what refuses a load."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from repoagent.api import Agent, AgentModel, ModelConfig
from repoagent.config import read_text
from repoagent.testing import AgentHarness, Outcome

pytestmark = pytest.mark.slow

Save = Callable[..., Path]
Load = Callable[..., Outcome]


def run(content: bytes) -> Any:
    x = np.arange(16, dtype="float32").reshape(2, 8)
    return ort.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def notes(outcome: Outcome) -> list[str]:
    return [note for note in outcome.report.entries[0].actions[0].notes if not note.startswith("private snapshot")]


def test_every_version_is_replaced_and_the_rest_is_kept(save: Save, load: Load, perceptron: "onnx.ModelProto") -> None:
    first = save(perceptron)
    save(perceptron, "2/model.onnx", data="weights.bin")
    (first.parents[1] / "labels.txt").write_bytes(b"a\n")
    expected = run(first.read_bytes())
    files = load().files
    assert sorted(files) == [
        "1/model.onnx",
        "1/model.onnx.intoto.json",
        "2/model.onnx",
        "2/model.onnx.data",
        "2/model.onnx.intoto.json",
        "config.pbtxt",
        "labels.txt",
    ]
    np.testing.assert_allclose(run(files["1/model.onnx"]), expected, rtol=1e-5)
    assert b"FusedGemm" in files["1/model.onnx"]


def test_the_report_states_what_was_done(save: Save, load: Load, perceptron: "onnx.ModelProto") -> None:
    save(perceptron)
    made, again = load(), load()
    tool = f"1/model.onnx: onnx to optimized, onnxruntime {ort.__version__}"
    assert notes(made)[0].startswith(f"{tool}, built after ")
    assert notes(again)[0] == f"{tool}, from the cache"
    assert notes(made)[1] == notes(again)[1] == "1/model.onnx: level extended"
    first, second = (outcome.report.entries[0].actions[0] for outcome in (made, again))
    assert first.digests == second.digests
    assert first.bytes_read == second.bytes_read
    assert first.bytes_written > second.bytes_written


def test_a_result_is_kept_for_the_next_load_of_the_same_content(
    save: Save, load: Load, harness: AgentHarness, perceptron: "onnx.ModelProto"
) -> None:
    def kept() -> int:
        return len(list(harness.cache.glob("objects/*")))

    save(perceptron)
    save(perceptron, "2/model.onnx")
    assert [load().loaded, kept()] == [True, 1]
    assert [load().loaded, kept()] == [True, 1]
    assert [load(level="basic").loaded, kept()] == [True, 2]
    assert [load(keep_original="true").loaded, kept()] == [True, 3]
    perceptron.producer_name = "another"
    save(perceptron)
    assert [load().loaded, kept()] == [True, 4]


def test_the_configuration_states_what_was_done_and_keeps_the_rest(
    save: Save, load: Load, perceptron: "onnx.ModelProto"
) -> None:
    save(perceptron)
    config = read_text(load('parameters { key: "mine" value { string_value: "stays" } }', level="basic").config)
    assert config.parameters["mine"].string_value == "stays"
    assert config.default_model_filename == ""
    assert config.backend == "onnxruntime"
    provenance = json.loads(config.parameters["repoagent_convert"].string_value)
    assert (provenance["from"], provenance["to"]) == ("onnx", "optimized")
    assert provenance["parameters"] == {"level": "basic"}
    assert provenance["tools"] == {"onnxruntime": ort.__version__}
    assert len(provenance["sha256"]["1"]["model.onnx"]) == 64


@pytest.mark.parametrize("data", [None, "weights.bin"])
def test_the_original_can_be_kept_beside_the_result(
    save: Save, load: Load, perceptron: "onnx.ModelProto", data: str | None
) -> None:
    source = save(perceptron, data=data).read_bytes()
    outcome = load(keep_original="true")
    kept = {"1/model.onnx", "1/model.optimized.onnx", "1/model.optimized.onnx.intoto.json", "config.pbtxt"}
    assert set(outcome.files) == (kept | {"1/model.optimized.onnx.data", "1/weights.bin"} if data else kept)
    assert outcome.files["1/model.onnx"] == source
    assert read_text(outcome.config).default_model_filename == "model.optimized.onnx"


def test_the_file_name_comes_from_the_parameter_else_from_the_configuration(
    save: Save, load: Load, perceptron: "onnx.ModelProto"
) -> None:
    save(perceptron, "1/a.onnx")
    save(perceptron, "1/b.onnx")
    assert read_text(load('default_model_filename: "a.onnx"').config).default_model_filename == "a.onnx"
    assert read_text(load(input="b.onnx").config).default_model_filename == "b.onnx"


def test_a_model_that_is_a_directory_becomes_a_file(save: Save, load: Load, perceptron: "onnx.ModelProto") -> None:
    save(perceptron, "1/model.onnx/model.onnx", data="weights.bin")
    files = load().files
    assert sorted(files) == ["1/model.onnx", "1/model.onnx.data", "1/model.onnx.intoto.json", "config.pbtxt"]


def test_without_a_configuration_none_is_written_as_nothing_in_it_would_differ(
    save: Save, tmp_path: Path, perceptron: "onnx.ModelProto"
) -> None:
    """The operator's policy demands the agent of a model that has no configuration."""
    from repoagent.loader.plan import PlannedAgent

    class Planner:
        def plan(self, *_: Any, **__: Any) -> list[PlannedAgent]:
            return [PlannedAgent("convert", origin="policy")]

        def admit(self, model_name: str, config: ModelConfig) -> None: ...

        def admit_command(self, model_name: str, command: str | None) -> None: ...

    save(perceptron)
    with AgentHarness(tmp_path / "own") as harness:
        harness.loader._planner = Planner()
        outcome = harness.run(tmp_path / "source")
    assert outcome.error is None
    assert sorted(outcome.files) == ["1/model.onnx", "1/model.onnx.intoto.json"]


@pytest.mark.parametrize(
    ("prepare", "parameters", "text"),
    [
        ("cut", {}, "agent 'convert': 1/model.onnx is not an ONNX model, or it is cut off"),
        ("bad", {}, "agent 'convert': 1/model.onnx: cannot be optimised: "),
        ("none", {}, "1/model.onnx: no such file; the parameter 'input' names the model file"),
        ("", {"lvl": "all"}, "unknown parameter 'lvl'; did you mean 'level'?"),
        ("", {"to": "tensort"}, "there is no converter from 'onnx' to 'tensort'; did you mean 'tensorrt'?"),
        ("taken", {"keep_original": "true"}, "into 1/model.optimized.onnx, but the model has such a file"),
    ],
)
def test_what_cannot_be_converted_is_refused_and_nothing_is_kept(
    prepare: str,
    parameters: dict[str, str],
    text: str,
    save: Save,
    load: Load,
    harness: AgentHarness,
    perceptron: "onnx.ModelProto",
) -> None:
    if prepare == "bad":
        perceptron.graph.node[0].op_type = "NoSuchOperator"
    path = save(perceptron)
    match prepare:
        case "cut":
            path.write_bytes(path.read_bytes()[:-100])
        case "none":
            path.rename(path.with_name("other.onnx"))
        case "taken":
            path.with_name("model.optimized.onnx").write_bytes(b"mine")
    outcome = load(**parameters)
    assert text in str(outcome.error)
    assert outcome.left == ()
    assert not list(harness.cache.glob("objects/*"))


@pytest.mark.parametrize("point", ["convert acquire_location", "after convert conversion"])
def test_a_cancelled_load_is_given_up(
    point: str, save: Save, load: Load, harness: AgentHarness, perceptron: "onnx.ModelProto"
) -> None:
    save(perceptron)
    harness.faults.cancel(point)
    outcome = load()
    assert "cancelled" in str(outcome.error)
    assert outcome.left == ()
    assert not list(harness.cache.glob("objects/*"))


class SecretAgent(Agent):
    """Hands the model on in a confidential location, as one that decrypts does."""

    api_version = 1

    def load(self, model: AgentModel) -> None:
        target = model.acquire_location(confidential=True)
        shutil.copytree(model.localize(), target, dirs_exist_ok=True)
        model.update_location(target)


def test_what_comes_from_a_confidential_agent_is_converted_in_memory_and_never_kept(
    save: Save, harness: AgentHarness, perceptron: "onnx.ModelProto"
) -> None:
    root = save(perceptron).parents[1]
    expected = run((root / "1" / "model.onnx").read_bytes())
    (root / "config.pbtxt").write_text('model_repository_agents { agents [ { name: "secret" }, { name: "convert" } ] }')
    harness.add("secret", SecretAgent)
    chain = harness.load(root)
    path = chain.files.local_path("1/model.onnx")
    assert path.is_relative_to(harness.memory)
    np.testing.assert_allclose(run(path.read_bytes()), expected, rtol=1e-5)
    chain.fail(RuntimeError("enough"))
    assert not list(harness.cache.glob("objects/*"))
    assert harness.left_over() == []
    (note, *_) = (note for note in chain.report.entries[1].actions[0].notes if "built" in note)
    assert re.search(r"built after [0-9.]+ s, not kept: the load is confidential", note)
