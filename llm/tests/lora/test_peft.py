"""Adapters from PEFT's folders."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_llm import Executor, ExecutorConfig, OutputConfig, Request
from repoagent_llm.builder import Form
from repoagent_llm.builder.safetensors import write_safetensors
from repoagent_llm.lora import read_peft
from repoagent_llm.runner.ort import OrtRunner

from llm.tests.lora_sample import SampleAdapter
from llm.tests.reference import Reference
from repoagent.errors import ConfigError, InvalidArgumentError

DATA = Path(__file__).parents[1] / "data" / "peft"
ANSWERS = json.loads((DATA / "answers.json").read_text())


@pytest.mark.parametrize("settings", [{}, {"use_rslora": True}, {"lora_bias": False, "use_dora": False}])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_folder_becomes_what_a_request_carries(
    kind: str, settings: dict[str, Any], reference: Callable[[str], Reference], tmp_path: Path
) -> None:
    sample = SampleAdapter(reference(kind), 4)
    found = read_peft(sample.save_peft(tmp_path / "adapter", alpha=12.0, **settings), 9)
    expected = sample.config(9)
    assert found.task_id == 9
    rows = {tuple(key): row for key, row in zip(found.config.tolist(), found.weights, strict=True)}
    assert len(rows) == len(expected.config)
    for key, row in zip(expected.config.tolist(), expected.weights, strict=True):
        np.testing.assert_allclose(rows[tuple(key)], row, rtol=1e-5, atol=1e-7)


def test_a_module_may_have_an_alpha_of_its_own(reference: Callable[[str], Reference], tmp_path: Path) -> None:
    sample = SampleAdapter(reference("llama"), 4, modules=(1, 2))
    folder = sample.save_peft(tmp_path / "adapter", alpha=8.0, alpha_pattern={"layers.1.self_attn.q_proj": 16.0})
    found, plain = read_peft(folder, 1), sample.config(1)
    rows = {tuple(key): row for key, row in zip(found.config.tolist(), found.weights, strict=True)}
    for key, expected in zip(plain.config.tolist(), plain.weights, strict=True):
        row = rows[tuple(key)]
        middle = key[2] * 64
        factor = 2.0 if key[:2] == [1, 1] else 1.0
        np.testing.assert_allclose(row[:middle], expected[:middle])
        np.testing.assert_allclose(row[middle:], expected[middle:] * factor, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"peft_type": "LOHA"}, "peft_type 'LOHA' is not supported"),
        ({"use_dora": True}, "use_dora = True is not supported"),
        ({"bias": "all"}, "bias = 'all' is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"alora_invocation_tokens": [5]}, "alora_invocation_tokens"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights = 'pissa_niter_4' is not supported.*base weights"),
    ],
)
def test_adapters_that_are_more_than_lora_are_named(
    settings: dict[str, Any], text: str, reference: Callable[[str], Reference], tmp_path: Path
) -> None:
    folder = SampleAdapter(reference("llama"), 4).save_peft(tmp_path / "adapter", alpha=1.0, **settings)
    with pytest.raises(RuntimeError, match=text):
        read_peft(folder, 1)


def test_tensors_of_other_layers_are_named(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 1}))
    name = "base_model.model.lm_head.lora_A.weight"
    write_safetensors(tmp_path / "adapter_model.safetensors", {name: np.ones((1, 2), np.float32)})
    with pytest.raises(RuntimeError, match=r"lm_head\.lora_A\.weight' is not supported"):
        read_peft(tmp_path, 1)


def test_folders_that_are_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"adapter_config\.json: File does not exist"):
        read_peft(tmp_path, 1)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 1}))
    with pytest.raises(InvalidArgumentError, match=r"adapter_model\.safetensors does not exist"):
        read_peft(tmp_path, 1)


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("name", sorted(ANSWERS["models"]))
def test_adapters_that_peft_saved_say_what_they_say_there(
    name: str, form: Form, open_runner: Callable[..., OrtRunner]
) -> None:
    """Made with data/make_peft.py: ranks and alphas by pattern, rsLoRA, GPT-2's layers."""
    entry, lora = ANSWERS["models"][name], read_peft(DATA / name, 3)
    output = OutputConfig(exclude_input_from_output=True, return_generation_logits=True)
    requests = [
        Request(answer["prompt"], 12, end_id=2, lora_config=lora, output_config=output) for answer in entry["answers"]
    ]
    with Executor.from_runner(open_runner(entry["kind"], form, lora=True), ExecutorConfig()) as executor:
        ids = executor.enqueue_requests(requests)
        results = [responses[0].result for responses in executor.await_responses(ids, timedelta(seconds=30))]
    compared = 0
    for answer, result in zip(entry["answers"], results, strict=True):
        assert result.output_token_ids == [answer["tokens"]]
        if not answer["tokens"]:  # the end token came first
            continue
        compared += 1
        np.testing.assert_allclose(result.generation_logits[0][0], answer["logits"], atol=2e-4)
    assert compared > 1
