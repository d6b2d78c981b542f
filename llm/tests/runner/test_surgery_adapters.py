"""Graphs that were not built for LoRA take adapters all the same."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from repoagent_llm import Executor, ExecutorConfig, OutputConfig, Request, Result
from repoagent_llm.builder import Form, Precision
from repoagent_llm.builder.products import dequantize
from repoagent_llm.runner.ort import OrtRunner
from repoagent_llm.runner.ort_forms import OrtGqaRunner
from repoagent_llm.runner.protocol import ModelRunner
from repoagent_llm.runner.runner_options import RunnerOptions
from repoagent_llm.runner.surgery import take_adapters

from examples.executor.synthetic import synthetic_checkpoint
from llm.tests.lora_sample import SampleAdapter
from llm.tests.reference import Array, Reference
from repoagent.errors import InvalidArgumentError

PROMPT = np.random.default_rng(3).integers(3, 60, 20).tolist()
GENAI_SHAPE: dict[str, Any] = {  # of data/make_genai.py
    "vocab_size": 64,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 48,
}
GENAI = Path(__file__).parents[1] / "data" / "genai"


def _answers(runner: ModelRunner, sample: SampleAdapter) -> list[Result]:
    """With the adapter, and without it in the same batch."""
    output = OutputConfig(exclude_input_from_output=True, return_generation_logits=True)
    requests = [Request(PROMPT, 6, lora_config=lora, output_config=output) for lora in (sample.config(1), None)]
    with Executor.from_runner(runner, ExecutorConfig()) as executor:
        ids = executor.enqueue_requests(requests)
        return [responses[0].result for responses in executor.await_responses(ids, timedelta(seconds=30))]


@pytest.mark.parametrize(
    ("kind", "form", "precision"),
    [
        ("llama", Form.GQA, Precision.FP32),
        ("llama", Form.GQA, Precision.INT4),
        ("qwen2", Form.GQA, Precision.FP16),
        ("gpt2", Form.STD, Precision.FP32),
    ],
)
def test_the_same_graph_comes_out_as_when_it_is_built_with_lora(
    kind: str,
    form: Form,
    precision: Precision,
    open_runner: Callable[..., OrtRunner],
    reference: Callable[[str], Reference],
) -> None:
    sample = SampleAdapter(reference(kind), 1)
    built = _answers(open_runner(kind, form, precision, lora=True), sample)
    operated = open_runner(kind, form, precision, loaded_lora=True)
    assert operated.info.lora is not None
    for found, expected in zip(_answers(operated, sample), built, strict=True):
        assert found.output_token_ids == expected.output_token_ids
        np.testing.assert_allclose(found.generation_logits, expected.generation_logits, atol=2e-5)


def _weights_of(folder: Path, source: Reference) -> dict[str, Array]:
    """The weights that a folder of onnxruntime-genai has in four bits, by the checkpoint's names."""
    loaded = onnx.load(str(folder / "model.onnx")).graph.initializer
    tensors = {item.name: onnx.numpy_helper.to_array(item) for item in loaded}
    found: dict[str, Any] = {}
    for name, packed in tensors.items():
        if name.endswith(".MatMul.weight_Q4"):
            stem = name.removesuffix(".MatMul.weight_Q4")
            names = [stem]
            if stem.endswith("qkv_proj"):
                names = [stem.replace("attn.qkv_proj", f"self_attn.{part}_proj") for part in "qkv"]
            names = [f"{item.replace('.attn.', '.self_attn.')}.weight" for item in names]
            shapes = [source.tensors[item].shape for item in names]
            matrix = dequantize(packed, tensors[f"{stem}.MatMul.weight_scales"], shapes[0][1])
            parts = np.split(matrix, np.cumsum([shape[0] for shape in shapes])[:-1])
            found.update({item: part.astype(np.float64) for item, part in zip(names, parts, strict=True)})
    return found


def test_folders_of_onnxruntime_genai_take_adapters(tmp_path: Path) -> None:
    source = synthetic_checkpoint(tmp_path, **GENAI_SHAPE)
    model = Reference(source, _weights_of(GENAI, Reference(source)))
    sample = SampleAdapter(model, 1)
    changed, plain = _answers(OrtGqaRunner(GENAI, RunnerOptions(threads=1, spinning=False, lora=True)), sample)
    expected = Reference(source, {**model.tensors, **sample.merged()}).logits(PROMPT)[-1]
    before = model.logits(PROMPT)[-1]
    # Activations go through the four-bit layers in eight bits, so the numbers are near, not equal.
    assert np.corrcoef(before, plain.generation_logits[0][0])[0, 1] > 0.99
    assert np.corrcoef(expected, changed.generation_logits[0][0])[0, 1] > 0.99
    assert np.corrcoef(expected, before)[0, 1] < 0.8


def test_a_graph_whose_layers_have_other_names_is_refused(decoder_folder: Callable[..., Path]) -> None:
    model = onnx.load(str(decoder_folder("llama") / "model.onnx"), load_external_data=False)
    for node in model.graph.node:
        if node.op_type == "MatMul":
            node.output[0] = f"other.{node.output[0]}"
    with pytest.raises(InvalidArgumentError, match=r"here: no linear layer has a name by which it could take"):
        take_adapters(model.graph, "here")
