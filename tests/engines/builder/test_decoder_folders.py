"""A decoder folder becomes one with a plan, through the agent ``convert``."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from repoagent_llm.runner.decoder_spec import read_spec

from examples.executor.synthetic import synthetic_checkpoint
from llm.tests.backend.tiny import byte_level
from repoagent.engines.plan_header import PlanHeader
from repoagent.errors import InvalidArgumentError
from repoagent.testing import AgentHarness, Outcome
from tests.engines.builder.plans import BuildPlan, need_tensorrt

pytestmark = pytest.mark.slow

Convert = Callable[..., Outcome]


@pytest.fixture
def convert(decoder: Callable[..., Path], tmp_path: Path) -> Iterator[Convert]:
    """``convert(kind, capacity, **parameters)``: a load of a model of the backend ``llm``."""
    need_tensorrt()
    with AgentHarness(tmp_path / "harness") as harness:

        def run(kind: str = "llama", capacity: int | None = 65, **parameters: str) -> Outcome:
            root = tmp_path / "repository" / "m"
            (root / "1").mkdir(parents=True)
            for file in decoder(kind, "fp16", capacity).parent.iterdir():
                (root / "1" / file.name).write_bytes(file.read_bytes())
            (root / "1" / "tokenizer.json").write_text("{}")
            given = {"from": "decoder", "to": "tensorrt", **parameters}
            agent = f'{{ name: "convert" parameters [ {_written(given)} ] }}'
            (root / "config.pbtxt").write_text(f'backend: "llm" model_repository_agents {{ agents [ {agent} ] }}')
            return harness.run(root)

        yield run


def test_the_folder_has_a_plan_in_the_place_of_its_graph(convert: Convert, tmp_path: Path) -> None:
    outcome = convert(max_sequences="4", max_tokens="16")
    assert outcome.error is None
    assert set(outcome.files) == {
        "1/genai_config.json",
        "1/model.plan",
        "1/model.plan.intoto.json",
        "1/tokenizer.json",
        "config.pbtxt",
    }
    assert PlanHeader.of(outcome.files["1/model.plan"])
    (tmp_path / "genai_config.json").write_bytes(outcome.files["1/genai_config.json"])
    spec = read_spec(tmp_path)
    assert (spec.filename, spec.standard) == ("model.plan", True)
    assert 'backend: "llm"' in outcome.config
    subjects = {one["name"]: one for one in json.loads(outcome.files["1/model.plan.intoto.json"])["subject"]}
    assert subjects.keys() == {"genai_config.json", "model.plan"}
    steps, prompts = (one["shapes"] for one in subjects["model.plan"]["annotations"]["profiles"])
    assert steps["input_ids"] == [[1, 1], [4, 1], [4, 1]]
    assert prompts["input_ids"] == [[1, 1], [1, 16], [4, 16]]
    assert (steps["logits_index"], prompts["logits_index"]) == ([[1], [4], [4]], [[1], [1], [16]])
    assert steps["past_key_values.0.key"] == [[1, 2, 65, 16], [4, 2, 65, 16], [4, 2, 65, 16]]


@pytest.mark.parametrize(
    ("capacity", "texts"),
    [
        (None, ("build(capacity=N), or convert the checkpoint with", "'from' = 'decoder'")),
        (65, ("varies, and nothing states how far", "'from' = 'decoder'")),
    ],
)
def test_the_graph_of_a_decoder_folder_taken_for_any_other_gets_the_hint(
    capacity: int | None, texts: tuple[str, ...], build_plan: BuildPlan, decoder: Callable[..., Path]
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        build_plan(decoder("llama", "fp16", capacity))
    for text in texts:
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("capacity", "parameters", "text"),
    [
        (None, {}, "build(capacity=N)"),
        (65, {"max_tokens": "100000"}, "parameter 'max_tokens': 100000 are more than the decoder's context length"),
        (65, {"max_sequences": "0"}, "parameter 'max_sequences': '0' is not a whole number from 1 to 4096"),
        (65, {"refit": "true"}, "parameter 'refit': plans with weights that can be exchanged are not supported yet"),
    ],
)
def test_what_cannot_become_a_plan_is_refused(
    capacity: int | None, parameters: dict[str, str], text: str, convert: Convert
) -> None:
    outcome = convert(capacity=capacity, **parameters)
    assert text in str(outcome.error)
    assert outcome.left == ()


def test_a_checkpoint_becomes_a_plan_through_a_decoder_of_standard_operators(tmp_path: Path) -> None:
    """One agent twice: from safetensors to a decoder folder, and from that to a plan."""
    need_tensorrt()
    root = tmp_path / "repository" / "m"
    inner = byte_level()
    checkpoint = synthetic_checkpoint(root / "1", vocab_size=inner.get_vocab_size() + 5)
    inner.save(str(checkpoint / "tokenizer.json"))
    steps = (
        {"to": "decoder", "form": "std", "precision": "fp16", "capacity": "65"},
        {"from": "decoder", "to": "tensorrt", "max_sequences": "4", "max_tokens": "16"},
    )
    agents = ", ".join(f'{{ name: "convert" parameters [ {_written(step)} ] }}' for step in steps)
    (root / "config.pbtxt").write_text(f"model_repository_agents {{ agents [ {agents} ] }}")
    with AgentHarness(tmp_path / "harness") as harness:
        outcome = harness.run(root)
    assert outcome.error is None
    assert PlanHeader.of(outcome.files["1/model.plan"])
    assert json.loads(outcome.files["1/genai_config.json"])["model"]["decoder"]["filename"] == "model.plan"
    assert not [name for name in outcome.files if name.endswith((".safetensors", ".onnx", ".data"))]
    assert outcome.files["1/tokenizer.json"]
    assert 'backend: "llm"' in outcome.config


def _written(parameters: dict[str, str]) -> str:
    return ", ".join(f'{{ key: "{key}" value: "{value}" }}' for key, value in parameters.items())
