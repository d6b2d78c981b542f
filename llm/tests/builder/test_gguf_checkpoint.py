"""A GGUF file as a checkpoint: what is built of it is what is built of the checkpoint that it was written from."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from repoagent_llm.builder import build
from repoagent_llm.builder.gguf import GgufFile
from repoagent_llm.builder.gguf_checkpoint import GgufCheckpoint, gguf_parts
from repoagent_llm.builder.products import dequantize
from repoagent_llm.runner.decoder_spec import CONFIG_NAME, read_spec
from repoagent_llm.runner.openvino.model import open_paged
from repoagent_llm.runner.ort_forms import OrtGqaRunner
from repoagent_llm.runner.paged_folder import FolderWeights, read_layout
from repoagent_llm.runner.protocol import Logits, Segment
from repoagent_llm.runner.runner_options import RunnerOptions

from llm.tests.builder.conftest import FILES, GGUF
from llm.tests.conftest import need_openvino
from llm.tests.tiny_checkpoints import tiny_checkpoint
from repoagent.errors import InvalidArgumentError, RepoAgentError, UnsupportedError

ROUNDED_BY_LLAMA_CPP = 0.06
"""llama.cpp rounds activations to eight bits, or to the type of the weights; ours are in fp32. Those of the files in
blocks of 256 are rounded in such blocks, and their logits are 2.5 times as far apart."""


def _last(runner: Any, prompt: list[int]) -> npt.NDArray[np.float64]:
    seq = runner.open()
    logits = runner.step([Segment(seq, np.array(prompt, np.int32), Logits.ALL)]).logits[-1].astype(np.float64)
    runner.close()
    return np.asarray(logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max())


def _on_pages(folder: Path) -> Any:
    need_openvino()
    return open_paged(read_spec(folder), RunnerOptions(threads=1, max_sequences=2, max_seq_len=64))


@pytest.mark.parametrize("name", list(FILES))
def test_log_probabilities_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    entry = FILES[name]
    found = _last(_on_pages(build(GGUF / f"{name}.gguf", tmp_path / "d", form="paged")), entry["prompt"])
    most = {"f32": 1e-5, "f16": 5e-3, "q4_k": 4 * ROUNDED_BY_LLAMA_CPP, "q6_k": 4 * ROUNDED_BY_LLAMA_CPP}
    most_here = most.get(name.split("-")[1], ROUNDED_BY_LLAMA_CPP)
    np.testing.assert_allclose(found, entry["log_probs"], rtol=0, atol=most_here)
    assert found.argmax() == np.argmax(entry["log_probs"])


@pytest.mark.parametrize("name", ["llama-f32", "llama-q8_0", "llama-q4_0"])
def test_both_runners_compute_the_same(name: str, tmp_path: Path) -> None:
    """Also those of Llama 3, whose rotary factors are a tensor of the file."""
    pages = _on_pages(build(GGUF / f"{name}.gguf", tmp_path / "paged", form="paged"))
    graph = OrtGqaRunner(build(GGUF / f"{name}.gguf", tmp_path / "gqa"), RunnerOptions(threads=1))
    np.testing.assert_allclose(_last(graph, FILES[name]["prompt"]), _last(pages, FILES[name]["prompt"]), atol=2e-5)


@pytest.mark.parametrize("name", list(FILES))
def test_tensors_are_those_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    from repoagent_llm.builder.safetensors import Checkpoint

    source, found = Checkpoint(tiny_checkpoint(tmp_path, FILES[name])), GgufCheckpoint(GGUF / f"{name}.gguf")
    steps = {"f32": 0.0, "f16": 5e-4, "bf16": 4e-3, "q8_0": 5e-3, "q4_0": 0.08, "q4_k": 0.08, "q6_k": 0.02}[
        name.split("-")[1]
    ]
    for tensor in source.names():
        wanted = source.read(tensor)
        np.testing.assert_allclose(found.read(tensor, wanted.shape), wanted, rtol=steps, atol=steps)


def test_a_file_in_fp32_gives_the_folder_of_its_checkpoint(tmp_path: Path) -> None:
    direct = build(tiny_checkpoint(tmp_path / "c", FILES["llama-f32"]), tmp_path / "direct", form="paged")
    found = build(GGUF / "llama-f32.gguf", tmp_path / "found", form="paged")
    weights = (direct / "decoder.safetensors").read_bytes()
    assert (found / "decoder.safetensors").read_bytes() == weights
    shapes = [json.loads((folder / CONFIG_NAME).read_text())["model"] for folder in (direct, found)]
    for shape in shapes:
        shape["decoder"]["paged"].pop("ropes")  # the same numbers, as a list
        shape.pop("eos_token_id"), shape.pop("type")
        shape.pop("pad_token_id")
    assert shapes[0] == shapes[1]


def _folder_levels(folder: Path, name: str, rows: int, blocks: int) -> npt.NDArray[np.float32]:
    spec = read_spec(folder)
    weights = FolderWeights(spec, read_layout(spec).sha256, own=False)
    packed = weights.array(name, "U8", rows, blocks, 16) ^ np.uint8(0x88)
    return dequantize(packed, weights.array(f"{name}.scale", "F16", rows, blocks, 1)[..., 0].astype(np.float32), 32)


def test_blocks_of_q4_0_are_taken_as_they_are(tmp_path: Path) -> None:
    """Also such as no rounding of ours would give: without a level of -8."""
    data = bytearray((GGUF / "llama-q4_0.gguf").read_bytes())
    tensor = GgufFile(GGUF / "llama-q4_0.gguf").tensors["blk.0.attn_output.weight"]
    data[tensor.start + 2 : tensor.start + 18] = bytes([0x97] * 16)  # levels of -1 and 1
    (tmp_path / "m.gguf").write_bytes(data)
    folder = build(tmp_path / "m.gguf", tmp_path / "d", form="paged", precision="int4")
    wanted = GgufCheckpoint(tmp_path / "m.gguf").read("model.layers.0.self_attn.o_proj.weight", (32, 32))
    assert set(np.abs(wanted[0] / np.abs(wanted[0]).max())) == {1.0}
    np.testing.assert_array_equal(_folder_levels(folder, "layers.0.attention_out", 32, 1), wanted)


def test_queries_and_keys_are_put_in_order_in_blocks_too(tmp_path: Path) -> None:
    folder = build(GGUF / "llama-q4_0.gguf", tmp_path / "d", form="paged", precision="int4")
    source = GgufCheckpoint(GGUF / "llama-q4_0.gguf")
    sizes = {"q": 32, "k": 16, "v": 16}
    parts = [source.read(f"model.layers.0.self_attn.{name}_proj.weight", (n, 32)) for name, n in sizes.items()]
    np.testing.assert_array_equal(_folder_levels(folder, "layers.0.qkv", 64, 1), np.concatenate(parts))


def test_an_int4_graph_for_onnx_runtime_computes_with_the_blocks(tmp_path: Path) -> None:
    """It rounds activations, so it is near to the exact one, not the same."""
    graph = OrtGqaRunner(build(GGUF / "llama-q4_0.gguf", tmp_path / "d", precision="int4"), RunnerOptions(threads=1))
    exact = OrtGqaRunner(build(GGUF / "llama-q4_0.gguf", tmp_path / "e"), RunnerOptions(threads=1))
    prompt = FILES["llama-q4_0"]["prompt"]
    np.testing.assert_allclose(_last(graph, prompt), _last(exact, prompt), rtol=0, atol=ROUNDED_BY_LLAMA_CPP)


def _set(name: str, key: str, form: str, value: float, place: Path) -> Path:
    """A copy of a file in which the number under ``key`` is another."""
    data = bytearray((GGUF / f"{name}.gguf").read_bytes())
    at = data.index(struct.pack("<Q", len(key)) + key.encode()) + 8 + len(key) + 4
    struct.pack_into(form, data, at, value)
    (place / "m.gguf").write_bytes(data)
    return place / "m.gguf"


@pytest.mark.parametrize(
    ("key", "form", "value", "text"),
    [
        ("llama.block_count", "<I", 2**31, "'llama.block_count' must be a whole number from 1 to 4096, not 2147483648"),
        ("llama.block_count", "<I", 0, "'llama.block_count' must be a whole number"),
        ("llama.block_count", "<I", 2, "has no tensor 'blk.1.attn_norm.weight'"),
        ("llama.attention.head_count", "<I", 2**31, "'llama.attention.head_count' must be a whole number"),
        ("llama.attention.head_count", "<I", 3, "'blk.0.attn_q.weight' has the shape .32, 32.; its keys make it"),
        ("llama.attention.head_count_kv", "<I", 2, "'blk.0.attn_k.weight' has the shape"),
        ("llama.attention.head_count_kv", "<I", 2**20, "'llama.attention.head_count_kv' must be a whole number"),
        ("llama.attention.value_length", "<I", 8, "values that have another size than keys"),
        ("llama.embedding_length", "<I", 64, r"'token_embd.weight' has the shape"),
        ("llama.feed_forward_length", "<I", 2**24, "'blk.0.ffn_gate.weight' has the shape"),
        ("llama.context_length", "<I", 2**31, "'llama.context_length' must be a whole number"),
        ("llama.rope.dimension_count", "<I", 15, "columns of a head cannot turn in pairs"),
        ("llama.rope.dimension_count", "<I", 32, "rope.dimension_count' must be a whole number from 1 to 16"),
        ("llama.rope.freq_base", "<f", float("nan"), "'llama.rope.freq_base' must be a number > 0, not nan"),
        ("llama.rope.freq_base", "<f", -1.0, "'llama.rope.freq_base' must be a number > 0, not -1.0"),
        ("llama.attention.layer_norm_rms_epsilon", "<f", float("inf"), "rms_epsilon' must be a number > 0, not inf"),
        (
            "gemma3.attention.sliding_window",
            "<I",
            2**31 + 1,
            "must be a whole number from 0 to 2147483648",
        ),
        ("gemma3.attention.sliding_window", "<I", 2**31, "'sliding_window' must be a whole number"),
        ("gemma3.rope.scaling.factor", "<f", 0.0, "'gemma3.rope.scaling.factor' must be a number > 0"),
        ("gemma3.attention.head_count", "<I", 64, "'blk.0.attn_q.weight' has the shape"),
        ("granite.logit_scale", "<f", 0.0, "'granite.logit_scale' must be a number > 0, not 0.0"),
        ("granite.residual_scale", "<f", float("nan"), "'granite.residual_scale' must be a number > 0"),
        ("phi3.rope.scaling.attn_factor", "<f", float("inf"), "attn_factor' must be a number > 0, not inf"),
        ("phi3.rope.dimension_count", "<I", 16, "'rope_factors_long.weight' must have 8 numbers"),
        (
            "phi3.feed_forward_length",
            "<I",
            33,
            "'blk.0.ffn_up.weight' has the shape .64, 32.; its",
        ),
        ("smollm3.block_count", "<I", 5, "has no tensor 'blk.4.attn_norm.weight'"),
        ("olmo2.attention.head_count_kv", "<I", 2, "'blk.0.attn_k.weight' has the shape"),
    ],
)
def test_numbers_that_cannot_be_are_refused_by_their_key(
    key: str, form: str, value: float, text: str, tmp_path: Path
) -> None:
    family = key.partition(".")[0]
    name, kind = ("llama-q8_0", "gqa") if family == "llama" else (f"{family}-f16", "paged")
    with pytest.raises(RepoAgentError, match=f"m.gguf: .*{text}"):
        build(_set(name, key, form, value, tmp_path), tmp_path / "d", form=kind)
    assert not (tmp_path / "d").exists()


def test_one_list_of_rope_factors_without_the_other_is_refused(change: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"tensor 'rope_factors_long.weight' must have 4 numbers"):
        GgufCheckpoint(change("phi3-f16", b"rope_factors_long", b"rope_factors_lung"))


def test_a_soft_cap_of_scores_is_refused(change: Any) -> None:
    path = change("olmo2-f16", b"olmo2.attention.value_length", b"olmo2.attn_logit_softcapping")
    data = path.read_bytes()
    at = data.index(b"softcapping") + len(b"softcapping")
    path.write_bytes(data[:at] + struct.pack("<If", 6, 50.0) + data[at + 8 :])
    with pytest.raises(UnsupportedError, match="olmo2 with soft caps"):
        GgufCheckpoint(path)


def test_a_file_that_is_a_hole_larger_than_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 2.00 GiB")  # of this process it would be all tests' memory

    monkeypatch.setattr(np, "fromfile", read)
    with pytest.raises(InvalidArgumentError, match=r"llama-q8_0.gguf: its weights take more memory than there is: Una"):
        build(GGUF / "llama-q8_0.gguf", tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


def test_experts_that_the_file_has_not_are_refused(tmp_path: Path) -> None:
    for count, text in (
        (2**31, "'llama.expert_count' must be"),
        (5, "has no expert 4"),
        (1, "expert_used_count' must be"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            build(_set("mixtral-q4_0", "llama.expert_count", "<I", count, tmp_path), tmp_path / "d", form="paged")


def test_an_architecture_that_is_not_known_is_refused_by_name(change: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"the architecture 'lemma' is not supported: read are llama, qwen2"):
        GgufCheckpoint(change("llama-q8_0", b"llama", b"lemma"))


def test_a_folder_with_one_file_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "m.gguf").symlink_to(GGUF / "llama-q8_0.gguf")
    assert (build(tmp_path / "a", tmp_path / "d") / "tokenizer.json").is_file()
    (tmp_path / "a" / "n.gguf").symlink_to(GGUF / "llama-q8_0.gguf")
    with pytest.raises(InvalidArgumentError, match="has 2 models of the format GGUF"):
        build(tmp_path / "a", tmp_path / "d")


def _part(number: int, place: Path = GGUF) -> Path:
    return place / f"qwen3-bf16-0000{number}-of-00003.gguf"


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """A folder with a model in three files."""
    (tmp_path / "parts").mkdir()
    for number in (1, 2, 3):
        shutil.copy(_part(number), tmp_path / "parts")
    return tmp_path / "parts"


def test_a_model_in_parts_gives_the_folder_of_the_same_one_in_one_file(parts: Path, tmp_path: Path) -> None:
    whole = build(GGUF / "qwen3-bf16.gguf", tmp_path / "whole")
    for source in (parts, _part(1, parts)):
        found = build(source, tmp_path / "found")
        assert {one.name: one.read_bytes() for one in found.iterdir()} == {
            one.name: one.read_bytes() for one in whole.iterdir()
        }


@pytest.mark.parametrize(
    ("source", "target", "text"),
    [
        (2, 3, r"00003-of-00003.gguf: the keys split.no and split.count must be 2 and 3, not \[1, 3\]"),
        (1, 2, r"00002-of-00003.gguf: the keys split.no and split.count must be 1 and 3, not \[0, 3\]"),
        (2, 1, "00002-of-00003.gguf: the tensor 'blk.0.attn_k_norm.weight' lies in an earlier part"),
        (None, 2, "00002-of-00003.gguf, a part of the same model, is missing"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(
    source: int | None, target: int, text: str, parts: Path, tmp_path: Path
) -> None:
    _part(target, parts).unlink()
    if source is not None:
        shutil.copy(_part(source), _part(target, parts))
    with pytest.raises(RepoAgentError, match=text):
        build(parts, tmp_path / "d")


def test_a_part_by_itself_and_parts_without_their_names_are_refused(parts: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"part 2 of 3; name the first part"):
        build(_part(2, parts), tmp_path / "d")
    shutil.copy(_part(1), tmp_path / "m.gguf")
    with pytest.raises(InvalidArgumentError, match=r"m.gguf: one of 3 parts, .* ends with -00001-of-00003.gguf"):
        build(tmp_path / "m.gguf", tmp_path / "d")
    shutil.copy(GGUF / "qwen3-bf16.gguf", _part(1, parts))
    with pytest.raises(InvalidArgumentError, match=r"00002-of-00003.gguf: the tensor .* lies in an earlier"):
        build(parts, tmp_path / "d")


@pytest.mark.parametrize("name", ["m-00000-of-00003.gguf", "m-00001-of-00000.gguf", "m-00001-of-99999.gguf"])
def test_impossible_numbers_of_parts_are_refused_before_a_file_is_opened(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="name the first part, and of 256 parts at most"):
        gguf_parts(name)


@pytest.mark.parametrize("name", ["llama-q8_0", "llama-q4_0", "qwen2moe-q8_0", "mixtral-q4_0"])
def test_eight_bits_on_pages_take_the_blocks_as_they_are(name: str, tmp_path: Path) -> None:
    """So they compute what fp32 computes, where rounding again would not; experts, and a head of Q4_0, too."""
    exact = _last(_on_pages(build(GGUF / f"{name}.gguf", tmp_path / "e", form="paged")), FILES[name]["prompt"])
    folder = build(GGUF / f"{name}.gguf", tmp_path / "d", form="paged", precision="int8")
    np.testing.assert_allclose(_last(_on_pages(folder), FILES[name]["prompt"]), exact, rtol=0, atol=2e-5)
