"""Decoders whose graph fixes the length of the cache, as TensorRT asks for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from repoagent_llm.assembly import load_runner
from repoagent_llm.builder import Form, build
from repoagent_llm.engine_config import EngineConfig
from repoagent_llm.runner.decoder_spec import read_spec
from repoagent_llm.runner.ort import OrtRunner
from repoagent_llm.runner.ort_forms import OrtStdRunner
from repoagent_llm.runner.protocol import Logits, Segment
from repoagent_llm.runner.runner_options import RunnerOptions
from repoagent_llm.types.executor_errors import CheckError, DecoderError, UnsupportedFeatureError

from repoagent.errors import InvalidArgumentError

PROMPT = [3, 5, 9, 17, 4]
CAPACITY = 20


@pytest.fixture(scope="module")
def fixed(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``fixed(kind)``: a folder of standard operators whose cache has ``CAPACITY`` tokens."""
    root = tmp_path_factory.mktemp("fixed")

    def make(kind: str) -> Path:
        if not (root / kind).exists():
            build(checkpoint(kind), root / kind, form=Form.STD, capacity=CAPACITY)
        return root / kind

    return make


def _options(**given: Any) -> RunnerOptions:
    return RunnerOptions(**{"threads": 1, "spinning": False, "max_sequences": 2, **given})


def _logits(runner: OrtRunner) -> Any:
    """Of a prompt in two pieces and three tokens behind it, one by one."""
    seq = runner.open()
    assert seq is not None
    pieces = (PROMPT[:3], PROMPT[3:], [7], [8], [9])
    found = (runner.step([Segment(seq, np.array(piece, np.int32), Logits.ALL)]).logits.copy() for piece in pieces)
    return np.concatenate(list(found))


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "gpt2"])
def test_a_fixed_length_changes_no_number(
    kind: str, fixed: Callable[[str], Path], open_runner: Callable[..., OrtRunner]
) -> None:
    runner = OrtStdRunner(fixed(kind), _options())
    assert runner.info.max_seq_len == CAPACITY - 1
    np.testing.assert_array_equal(_logits(runner), _logits(open_runner(kind, Form.STD, max_seq_len=CAPACITY - 1)))


def test_every_cache_in_the_graph_has_the_length(fixed: Callable[[str], Path]) -> None:
    graph = onnx.load(str(fixed("llama") / "model.onnx"), load_external_data=False).graph
    caches = [item for item in (*graph.input, *graph.output) if "past" in item.name or "present" in item.name]
    assert caches
    assert {item.type.tensor_type.shape.dim[2].dim_value for item in caches} == {CAPACITY}


def test_a_runner_with_another_length_is_refused_when_it_is_loaded(fixed: Callable[[str], Path]) -> None:
    with pytest.raises(CheckError, match=r"have 20 tokens, so that a sequence holds 19, but max_seq_len is 64: leave"):
        OrtStdRunner(fixed("llama"), _options(max_seq_len=64))
    config = EngineConfig()
    config.runner_options = _options(max_seq_len=18)
    with pytest.raises(CheckError, match=r"max_seq_len is 18.*capacity=19"):
        load_runner(read_spec(fixed("llama")), config)


def test_a_folder_whose_context_is_shorter_is_refused(fixed: Callable[[str], Path], tmp_path: Path) -> None:
    for file in fixed("llama").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "genai_config.json").read_text())
    config["model"]["context_length"] = 16
    (tmp_path / "genai_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckError, match=r"caches have 20 tokens.*context length of 16: expected 2 to 17"):
        OrtStdRunner(tmp_path, _options())


def test_caches_of_two_lengths_are_refused(decoder_folder: Callable[..., Path], tmp_path: Path) -> None:
    for file in decoder_folder("llama", Form.STD).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    model = onnx.load(str(tmp_path / "model.onnx"), load_external_data=False)
    for item in (*model.graph.input, *model.graph.output):
        if item.name.startswith(("past_key_values.", "present.")):
            item.type.tensor_type.shape.dim[2].dim_value = 30 if ".1." in item.name else 20
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(DecoderError, match="caches differ in length: 20, 30 tokens"):
        OrtStdRunner(tmp_path, _options())


@pytest.mark.parametrize("capacity", [0, 1, -3, 10**9, True, "20"])
def test_a_length_that_makes_no_sense_is_refused(
    capacity: Any, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgumentError, match="capacity: expected 2 to"):
        build(checkpoint("llama"), tmp_path / "d", form=Form.STD, capacity=capacity)
    assert not (tmp_path / "d").exists()


def test_the_other_form_has_no_fixed_length(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFeatureError, match="it belongs to the std form"):
        build(checkpoint("llama"), tmp_path / "d", capacity=20)
