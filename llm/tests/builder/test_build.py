"""The builder: graphs it writes compute what transformers computes; what it refuses."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from repoagent_llm.builder import Form, Precision, build
from repoagent_llm.builder.products import BLOCKS, dequantize, quantize, quantize_outputs
from repoagent_llm.builder.safetensors import Checkpoint, write_safetensors
from repoagent_llm.runner.ort import OrtRunner
from repoagent_llm.runner.ort_forms import OrtGqaRunner
from repoagent_llm.runner.protocol import Logits, Segment
from repoagent_llm.runner.runner_options import RunnerOptions
from repoagent_llm.types.executor_errors import UnsupportedFeatureError

from examples.executor.synthetic import synthetic_checkpoint
from llm.tests.reference import Reference
from repoagent.errors import ConfigError, InvalidArgumentError

KINDS = ["llama", "mistral", "qwen2", "qwen3", "gpt2"]
STANDARD_OPS = [
    "Add",
    "And",
    "Attention",
    "Cast",
    "Concat",
    "Flatten",
    "Gather",
    "Gelu",
    "Greater",
    "Identity",
    "LayerNormalization",
    "LessOrEqual",
    "MatMul",
    "Mul",
    "RMSNormalization",
    "Range",
    "Reshape",
    "RotaryEmbedding",
    "Shape",
    "Sigmoid",
    "Split",
    "Squeeze",
    "Sub",
    "TensorScatter",
    "Transpose",
    "Unsqueeze",
]


def _logits(runner: OrtRunner, prompt: list[int]) -> Any:
    seq = runner.open()
    assert seq is not None
    return runner.step([Segment(seq, np.array(prompt, np.int32), Logits.ALL)]).logits.copy()


@pytest.mark.parametrize("kind", KINDS)
def test_the_checkpoint_is_the_one_that_the_oracle_saw(
    kind: str, oracle: dict[str, Any], checkpoint: Callable[[str], Path]
) -> None:
    digest = hashlib.sha256((checkpoint(kind) / "model.safetensors").read_bytes()).hexdigest()
    assert digest == oracle["models"][kind]["sha256"]


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_those_of_transformers(
    kind: str, form: Form, oracle: dict[str, Any], open_runner: Callable[..., OrtRunner]
) -> None:
    runner = open_runner(kind, form)
    for prompt, expected in zip(oracle["prompts"], oracle["models"][kind]["logits"], strict=True):
        atol = 2e-5 if form is Form.PAGED else 5e-5
        np.testing.assert_allclose(_logits(runner, prompt)[[0, -1]], expected, rtol=0, atol=atol)


@pytest.mark.parametrize("form", [Form.GQA, Form.STD])
def test_half_precision_stays_close(form: Form, oracle: dict[str, Any], open_runner: Callable[..., OrtRunner]) -> None:
    runner = open_runner("llama", form, Precision.FP16)
    assert runner.info.dtype == "float16"
    found = _logits(runner, oracle["prompts"][1])[[0, -1]]
    np.testing.assert_allclose(found, oracle["models"]["llama"]["logits"][1], atol=0.05)


@pytest.mark.parametrize("block", [32, 128])
def test_four_bits_equal_the_same_weights_rounded_beforehand(
    tmp_path: Path, checkpoint: Callable[[str], Path], block: int
) -> None:
    source = checkpoint("llama")
    weights = Checkpoint(source)
    rounded = {}
    for name in weights.names():
        tensor = weights.read(name)
        if tensor.ndim == 2 and "embed" not in name:
            tensor = dequantize(*quantize(tensor, block), tensor.shape[1])
        rounded[name] = tensor
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    write_safetensors(tmp_path / "model.safetensors", rounded)
    folder = build(tmp_path, tmp_path / "decoder")
    packed = build(source, tmp_path / "packed", precision=Precision.INT4, block=block)
    options = RunnerOptions(threads=1, spinning=False)
    exact, found = (_logits(OrtGqaRunner(place, options), [5, 9, 17, 4]) for place in (folder, packed))
    # The kernel rounds activations to eight bits on top.
    assert np.abs(found - exact).max() < 0.1 * exact.std()


def test_eight_bits_stay_close_and_closer_than_four(
    oracle: dict[str, Any], open_runner: Callable[..., OrtRunner]
) -> None:
    prompt = oracle["prompts"][1]
    exact, eight, four = (
        _logits(open_runner("llama", Form.GQA, precision), prompt)
        for precision in (Precision.FP32, Precision.INT8, Precision.INT4)
    )
    assert (eight - exact).std() < 0.05 * exact.std()
    assert (eight - exact).std() < 0.2 * (four - exact).std()


def test_an_activation_is_rounded_once_for_all_layers_that_read_it(decoder_folder: Callable[..., Path]) -> None:
    folder = decoder_folder("qwen2", Form.GQA, Precision.INT8)
    nodes = onnx.load(str(folder / "model.onnx"), load_external_data=False).graph.node
    products = [node for node in nodes if node.op_type == "MatMulIntegerToFloat"]
    layers = (len(products) - 1) // 5  # qkv, attention_out, gate, up, mlp_out
    assert len({node.input[0] for node in products}) == 4 * layers + 1
    assert sum(node.op_type == "QuantizeLinear" for node in nodes) == 4 * layers + 1


def test_eight_bits_of_a_token_of_zeros_are_zeros(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    """Its step is zero, and what is divided by it no number."""
    source = checkpoint("llama")
    weights = {name: Checkpoint(source).read(name).copy() for name in Checkpoint(source).names()}
    (embedding,) = (name for name in weights if "embed" in name)
    weights[embedding][7] = 0
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    write_safetensors(tmp_path / "model.safetensors", weights)
    folder = build(tmp_path, tmp_path / "decoder", precision=Precision.INT8)
    logits = _logits(OrtGqaRunner(folder, RunnerOptions(threads=1, spinning=False)), [7, 7, 9])
    assert (logits[:2] == 0).all()
    assert np.isfinite(logits).all()
    assert logits[2].any()


def test_rounding_to_eight_bits_misses_by_half_a_step_of_the_output() -> None:
    matrix = np.random.default_rng(0).standard_normal((5, 70)).astype(np.float32)
    matrix[3] = 0
    levels, scales = quantize_outputs(matrix)
    assert levels.shape == (70, 5)
    assert [levels.dtype, scales.dtype] == [np.dtype(np.int8), np.dtype(np.float32)]
    assert (np.abs(levels).max(axis=0)[[0, 1, 2, 4]] == 127).all()
    assert (np.abs(levels.T * scales[:, None] - matrix) <= scales[:, None] * 0.5001).all()


@pytest.mark.parametrize("block", BLOCKS)
def test_rounding_to_four_bits_keeps_the_largest_value_of_a_block_and_misses_others_by_half_a_step(block: int) -> None:
    matrix = np.random.default_rng(0).standard_normal((5, 70)).astype(np.float32)
    packed, scales = quantize(matrix, block)
    assert packed.shape == (5, -(-70 // block), block // 2)
    error = np.abs(dequantize(packed, scales, 70) - matrix)
    steps = np.abs(scales).repeat(block, axis=1)[:, :70]
    # A value opposite in sign to the block's largest may be cut off at 7 steps.
    assert (error <= steps * 1.0001).all()
    assert np.median(error / steps) < 0.3
    assert (dequantize(*quantize(np.zeros((2, 32), np.float32)), 32) == 0).all()


def test_the_standard_form_uses_standard_operators_only(decoder_folder: Callable[..., Path]) -> None:
    for kind in KINDS:
        model = onnx.load(str(decoder_folder(kind, Form.STD) / "model.onnx"), load_external_data=False)
        assert {item.domain for item in model.opset_import} == {""}
        assert {node.op_type for node in model.graph.node} <= set(STANDARD_OPS)


def test_tokenizer_files_and_end_ids_come_along(tmp_path: Path) -> None:
    source = synthetic_checkpoint(tmp_path / "source", eos_token_id=[2, 7])
    (source / "tokenizer.json").write_text("{}")
    folder = build(source, tmp_path / "decoder")
    assert (folder / "tokenizer.json").read_text() == "{}"
    model = json.loads((folder / "genai_config.json").read_text())["model"]
    assert (model["eos_token_id"], model["pad_token_id"], model["type"]) == ([2, 7], 2, "llama")


def test_bfloat16_and_half_weights_are_read(tmp_path: Path) -> None:
    values = np.array([1.5, -2.25, 0.0, 3.0], np.float32)
    half = values.astype(np.float16)
    write_safetensors(tmp_path / "a.safetensors", {"half": half})
    raw = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    head = json.dumps({"brain": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, len(raw)]}}).encode()
    (tmp_path / "b.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + raw)
    weights = Checkpoint(tmp_path)
    assert np.array_equal(weights.read("half"), values)
    assert np.array_equal(weights.read("brain"), values.reshape(2, 2))
    with pytest.raises(InvalidArgumentError, match="no tensor 'other'"):
        weights.read("other")


@pytest.mark.parametrize(
    ("kind", "shape", "text"),
    [
        ("llama", {"hidden_act": "relu"}, "activation 'relu'"),
        ("llama", {"rope_scaling": {"rope_type": "xpos", "factor": 2.0}}, "rope scaling 'xpos'"),
        (
            "llama",
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            "a rope that depends on",
        ),
        ("llama", {"num_attention_heads": 8}, "head size of 8"),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
            "layers of several kinds; take the form paged",
        ),
        (
            "llama",
            {"layer_types": ["sliding_attention", "chunked_attention"]},
            "layers of the type 'chunked_attention'",
        ),
        ("gpt2", {"activation_function": "relu"}, "activation 'relu'"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("gpt2", {"scale_attn_weights": False}, "without scale_attn_weights"),
        ("llama", {"partial_rotary_factor": 0.5}, "a partial rotary"),
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "a partial rotary"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, "a quantized checkpoint"),
    ],
)
def test_shapes_it_does_not_know_are_refused_by_name(
    kind: str, shape: dict[str, Any], text: str, tmp_path: Path
) -> None:
    source = synthetic_checkpoint(tmp_path / "source", kind, **shape)
    with pytest.raises(UnsupportedFeatureError, match=text):
        build(source, tmp_path / "decoder")


def test_texts_are_taken_for_paths_forms_and_precisions_and_misspelt_ones_are_refused(tmp_path: Path) -> None:
    source = synthetic_checkpoint(tmp_path / "source")
    said = build(str(source), str(tmp_path / "said"), form="gqa", precision="int4")
    meant = build(source, tmp_path / "meant", precision=Precision.INT4)
    assert (said / "model.onnx").read_bytes() == (meant / "model.onnx").read_bytes()
    with pytest.raises(
        InvalidArgumentError, match="there is no precision 'int5': there are fp32, fp16, bf16, int8, int4"
    ):
        build(source, tmp_path / "never", precision="int5")
    assert not (tmp_path / "never").exists()


def test_bad_checkpoints_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="File does not exist"):
        build(tmp_path, tmp_path / "decoder")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UnsupportedFeatureError, match="model_type 'bert'"):
        build(tmp_path, tmp_path / "decoder")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ConfigError, match="'hidden_size' is missing"):
        build(tmp_path, tmp_path / "decoder")
    source = synthetic_checkpoint(tmp_path / "source")
    for precision in (Precision.INT8, Precision.INT4):
        with pytest.raises(UnsupportedFeatureError, match=f"{precision.value} in standard operators"):
            build(source, tmp_path / "decoder", form=Form.STD, precision=precision)
    with pytest.raises(InvalidArgumentError, match="blocks of 48 weights: sizes are 16, 32"):
        build(source, tmp_path / "decoder", precision=Precision.INT4, block=48)
    (source / "model.safetensors").write_bytes(b"12345678901")
    with pytest.raises(InvalidArgumentError, match="not a safetensors file"):
        build(source, tmp_path / "decoder")
    (source / "model.safetensors").unlink()
    with pytest.raises(InvalidArgumentError, match=r"no \*\.safetensors file"):
        build(source, tmp_path / "decoder")


@pytest.mark.parametrize(
    ("kind", "changed", "text"),
    [
        (
            "llama",
            {"vocab_size": 50},
            r"embed_tokens.weight' has the shape \[96, 64\]; config.json makes it \[50, 64\]",
        ),
        ("llama", {"intermediate_size": 77}, "gate_proj.weight' has the shape"),
        ("qwen3", {"num_key_value_heads": 4}, "k_proj.weight' has the shape"),
        ("gpt2", {"n_inner": 77}, "c_fc.weight' has the shape"),
        ("gpt2", {"n_positions": 9}, "wpe.weight' has the shape"),
        ("llama", {"num_hidden_layers": 9}, "no tensor 'model.layers.2"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "rope scaling needs factor, a number > 0, not None"),
    ],
)
def test_tensors_that_config_json_does_not_describe_are_named(
    kind: str, changed: dict[str, Any], text: str, tmp_path: Path
) -> None:
    source = synthetic_checkpoint(tmp_path / "source", kind)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, **changed}))
    with pytest.raises(InvalidArgumentError, match=text):
        build(source, tmp_path / "decoder")


def test_files_that_are_damaged_are_named(tmp_path: Path) -> None:
    source = synthetic_checkpoint(tmp_path / "source")
    tensors, config = source / "model.safetensors", source / "config.json"
    whole, text = tensors.read_bytes(), config.read_text()
    tensors.write_bytes(whole[:-1000])
    with pytest.raises(InvalidArgumentError, match=r"cut short, the tensor '.*' lies behind its end"):
        build(source, tmp_path / "decoder")
    for head in (b"not JSON", b"[1]", b'{"a": {"dtype": "F32"}}'):
        tensors.write_bytes(len(head).to_bytes(8, "little") + head + whole)
        with pytest.raises(InvalidArgumentError, match="its head cannot be read"):
            build(source, tmp_path / "decoder")
    size = int.from_bytes(whole[:8], "little")
    head = json.loads(whole[8 : 8 + size])
    head["lm_head.weight"]["data_offsets"][1] -= 4
    written = json.dumps(head).encode()
    tensors.write_bytes(len(written).to_bytes(8, "little") + written + whole[8 + size :])
    with pytest.raises(InvalidArgumentError, match=r"'lm_head.weight' has 24572 bytes, not those of its shape"):
        build(source, tmp_path / "decoder")
    heads = '"num_attention_heads": 4'
    assert heads in text
    for wrong in (
        "{",
        "[]",
        text.replace("64", '"64"'),
        *(text.replace(heads, heads[:-1] + end) for end in ("0", "5")),
    ):
        config.write_text(wrong)
        with pytest.raises(ConfigError, match="cannot be read"):
            build(source, tmp_path / "decoder")


def _rewrite(source: Path, change: Callable[[dict[str, Any]], object], name: str = "model.safetensors") -> None:
    read = Checkpoint(source)
    tensors = {tensor: np.array(read.read(tensor)) for tensor in read.names()}
    change(tensors)
    write_safetensors(source / name, tensors)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("value", "precision", "text"),
    [
        (1e6, Precision.FP16, "logits.weight has values that are not finite as float16"),
        (np.nan, Precision.FP32, "logits.weight has values that are not finite as float32"),
    ],
)
def test_weights_that_cannot_be_held_are_named_and_the_folder_that_was_there_stays(
    value: float, precision: Precision, text: str, tmp_path: Path
) -> None:
    source = synthetic_checkpoint(tmp_path / "source")
    target = build(source, tmp_path / "decoder")
    before = {file.name: file.read_bytes() for file in target.iterdir()}
    _rewrite(source, lambda tensors: tensors["lm_head.weight"].__setitem__((0, 0), value))
    for place in (target, tmp_path / "new"):
        with pytest.raises(InvalidArgumentError, match=text):
            build(source, place, precision=precision)
    assert {file.name: file.read_bytes() for file in target.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decoder", "source"]


def test_a_decoder_may_lie_beside_its_checkpoint(tmp_path: Path) -> None:
    source = synthetic_checkpoint(tmp_path / "source")
    (source / "tokenizer.json").write_text("{}")
    build(source, source)
    assert (source / "tokenizer.json").read_text() == "{}"
    OrtGqaRunner(source, RunnerOptions(threads=1)).close()


def test_a_checkpoint_in_several_files_is_read_as_its_index_says(tmp_path: Path) -> None:
    source = synthetic_checkpoint(tmp_path / "source")
    whole = build(source, tmp_path / "whole")
    read = Checkpoint(source)
    files = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(read.names())}
    for file in set(files.values()):
        write_safetensors(source / file, {name: np.array(read.read(name)) for name in files if files[name] == file})
    with pytest.raises(InvalidArgumentError, match=r"lies in .*model-0.safetensors too"):
        build(source, tmp_path / "decoder")
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    build(source, tmp_path / "decoder")
    assert (tmp_path / "decoder" / "model.onnx.data").read_bytes() == (whole / "model.onnx.data").read_bytes()
    (source / "model-1.safetensors").unlink()
    with pytest.raises(InvalidArgumentError, match=r"model-1.safetensors: File does not exist, but model.safetensors"):
        build(source, tmp_path / "decoder")
    (source / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(InvalidArgumentError, match="not an index"):
        build(source, tmp_path / "decoder")


def test_an_lm_head_that_is_missing_is_not_replaced_by_the_embedding(tmp_path: Path) -> None:
    source = synthetic_checkpoint(tmp_path / "source")
    _rewrite(source, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(InvalidArgumentError, match=r"no tensor 'lm_head.weight'"):
        build(source, tmp_path / "decoder")


def test_a_bias_of_one_projection_alone_is_applied(tmp_path: Path) -> None:
    source = synthetic_checkpoint(tmp_path / "source")
    bias = np.linspace(-3, 3, 64, dtype=np.float32)
    _rewrite(source, lambda tensors: tensors.update({"model.layers.1.self_attn.q_proj.bias": bias}))
    runner = OrtGqaRunner(build(source, tmp_path / "decoder"), RunnerOptions(threads=1))
    prompt = [3, 17, 42, 8]
    assert _logits(runner, prompt) == pytest.approx(Reference(source).logits(prompt), abs=2e-4)
    runner.close()
