"""The ONNX Runtime runners: greedy tokens equal to transformers', folders that are refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from repoagent_llm.builder import Form
from repoagent_llm.runner.ort import OrtRunner
from repoagent_llm.runner.ort_forms import OrtGqaRunner, OrtStdRunner
from repoagent_llm.runner.protocol import Segment
from repoagent_llm.runner.runner_options import RunnerOptions
from repoagent_llm.types.executor_errors import CheckError, DecoderError


@pytest.mark.parametrize("form", [Form.GQA, Form.STD])
@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "gpt2"])
def test_greedy_tokens_of_a_batch_equal_those_of_transformers(
    kind: str, form: Form, oracle: dict[str, Any], open_runner: Callable[..., OrtRunner]
) -> None:
    runner = open_runner(kind, form)
    seqs = [runner.open() for _ in oracle["prompts"]]
    assert None not in seqs
    found: list[list[int]] = [[] for _ in seqs]
    pieces = [np.array(prompt, np.int32) for prompt in oracle["prompts"]]
    for _ in range(oracle["new_tokens"]):
        result = runner.step([Segment(seq, piece) for seq, piece in zip(seqs, pieces, strict=True) if seq is not None])
        assert result.argmax is not None
        for tokens, rows in zip(found, result.rows, strict=True):
            tokens.append(int(result.argmax[rows][0]))
        pieces = [np.array(tokens[-1:], np.int32) for tokens in found]
    for tokens, expected in zip(found, oracle["models"][kind]["greedy"], strict=True):
        assert tokens[: len(expected)] == expected


def test_the_file_of_weights_is_not_touched_and_extra_outputs_must_exist(decoder_folder: Callable[..., Path]) -> None:
    folder = decoder_folder("llama")
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    OrtGqaRunner(folder, RunnerOptions(threads=1, spinning=False, extra_outputs=("layers.0.mlp_out",))).close()
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    with pytest.raises(DecoderError, match=r"no tensor is named 'hidden'.*last_hidden"):
        OrtGqaRunner(folder, RunnerOptions(extra_outputs=("hidden",)))


@pytest.mark.parametrize("name", ["present.0.key", "last_hidden.all", "row_logits", "mask.sum", "total_length"])
def test_extra_outputs_have_a_value_for_each_token(name: str, decoder_folder: Callable[..., Path]) -> None:
    options = RunnerOptions(threads=1, spinning=False, extra_outputs=(name,))
    with pytest.raises(DecoderError, match=rf"the tensor '{name}' is \[.*\], and cannot be an output"):
        OrtGqaRunner(decoder_folder("llama"), options)


def test_a_graph_that_needs_the_mask_elsewhere_is_refused(decoder_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "decoder"
    shutil.copytree(decoder_folder("llama"), folder)
    graph = onnx.load(folder / "model.onnx", load_external_data=False)
    first = next(node for node in graph.graph.node if node.output[0] == "embedded")
    first.output[0] = "embedded.plain"
    place = list(graph.graph.node).index(first) + 1
    scale = onnx.helper.make_node("Cast", ["attention_mask"], ["mask.float"], to=onnx.TensorProto.FLOAT)
    axes = onnx.numpy_helper.from_array(np.array([2]), "mask.last")
    graph.graph.initializer.append(axes)
    wide = onnx.helper.make_node("Unsqueeze", ["mask.float", "mask.last"], ["mask.wide"])
    masked = onnx.helper.make_node("Mul", ["embedded.plain", "mask.wide"], ["embedded"])
    for offset, node in enumerate((scale, wide, masked)):
        graph.graph.node.insert(place + offset, node)
    onnx.save(graph, folder / "model.onnx")
    with pytest.raises(DecoderError, match="reads attention_mask"):
        OrtGqaRunner(folder, RunnerOptions(threads=1, spinning=False))


def test_few_bindings_are_kept_and_those_used_last(
    open_runner: Callable[..., OrtRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repoagent_llm.runner.ort._KEPT_RUNS", 2)
    found = []
    for limited in (True, False):
        runner = open_runner("llama")
        seqs = [seq for _ in range(4) if (seq := runner.open()) is not None]
        tokens = []
        for count in (4, 3, 4, 2, 1, 4, 3):
            result = runner.step([Segment(seq, np.array([count], np.int32)) for seq in seqs[:count]])
            assert result.argmax is not None
            tokens += [int(result.argmax[rows][0]) for rows in result.rows]
            if limited:
                assert len(runner._decode_runs) <= 2
        found.append(tokens)
        if limited:
            assert [batch for batch, _, _ in runner._decode_runs] == [4, 3]
        monkeypatch.undo()
    assert found[0] == found[1]


def test_a_folder_of_onnxruntime_genais_builder_gives_the_tokens_that_its_generator_gave() -> None:
    folder = Path(__file__).parents[1] / "data" / "genai"
    runner = OrtGqaRunner(folder, RunnerOptions(threads=1, spinning=False))
    for entry in json.loads((folder / "tokens.json").read_text()):
        seq = runner.open()
        assert seq is not None
        found: list[int] = []
        piece = entry["prompt"]
        while len(found) < len(entry["tokens"]):
            result = runner.step([Segment(seq, np.array(piece, np.int32))])
            assert result.argmax is not None
            found.append(int(result.argmax[0]))
            piece = found[-1:]
        assert found == entry["tokens"]


def test_folders_of_the_other_form_are_refused(decoder_folder: Callable[..., Path]) -> None:
    with pytest.raises(CheckError, match="of standard operators, expected one with GroupQueryAttention"):
        OrtGqaRunner(decoder_folder("llama", Form.STD))
    with pytest.raises(CheckError, match="expected one of standard operators"):
        OrtStdRunner(decoder_folder("llama", Form.GQA))


def test_incomplete_folders_are_refused(tmp_path: Path, decoder_folder: Callable[..., Path]) -> None:
    with pytest.raises(DecoderError, match=r"genai_config\.json: File does not exist"):
        OrtGqaRunner(tmp_path)
    config = json.loads((decoder_folder("llama") / "genai_config.json").read_text())
    del config["model"]["decoder"]["head_size"]
    (tmp_path / "genai_config.json").write_text(json.dumps(config))
    with pytest.raises(DecoderError, match=r"model\.decoder\.head_size' is missing"):
        OrtGqaRunner(tmp_path)
    (tmp_path / "genai_config.json").write_text("{")
    with pytest.raises(DecoderError, match="cannot be read"):
        OrtGqaRunner(tmp_path)


@pytest.mark.parametrize("form", [Form.GQA, Form.STD])
@pytest.mark.parametrize(
    ("section", "key", "value", "text"),
    [
        ("model", "vocab_size", 5, "vocabulary has 96 tokens, genai_config.json has 5"),
        ("decoder", "num_hidden_layers", 1, "does not have the 1 layers"),
        ("decoder", "num_hidden_layers", 9, "does not have the 9 layers"),
        ("decoder", "num_key_value_heads", 1, "has 2 KV heads, genai_config.json has 1"),
        ("decoder", "head_size", 8, "has 16 values in a head, genai_config.json has 8"),
        ("decoder", "hidden_size", 8, "has a hidden size of 8"),
    ],
)
def test_a_graph_that_the_configuration_does_not_describe_is_refused(
    form: Form, section: str, key: str, value: int, text: str, tmp_path: Path, decoder_folder: Callable[..., Path]
) -> None:
    folder = Path(shutil.copytree(decoder_folder("llama", form), tmp_path / "folder"))
    config = json.loads((folder / "genai_config.json").read_text())
    (config["model"] if section == "model" else config["model"]["decoder"])[key] = value
    (folder / "genai_config.json").write_text(json.dumps(config))
    with pytest.raises(DecoderError, match=text):
        (OrtGqaRunner if form is Form.GQA else OrtStdRunner)(folder)


def test_files_that_are_missing_or_damaged_are_named(tmp_path: Path, decoder_folder: Callable[..., Path]) -> None:
    folder = Path(shutil.copytree(decoder_folder("llama"), tmp_path / "folder"))
    (folder / "model.onnx.data").write_bytes(b"short")
    with pytest.raises(DecoderError, match=r"model\.onnx: ONNX Runtime cannot load it"):
        OrtGqaRunner(folder)
    (folder / "model.onnx").write_bytes(b"no graph" * 9)
    with pytest.raises(DecoderError, match=r"model\.onnx is not an ONNX model"):
        OrtGqaRunner(folder)
    (folder / "model.onnx").unlink()
    with pytest.raises(DecoderError, match=r"model\.onnx: File does not exist"):
        OrtGqaRunner(folder)


@pytest.mark.parametrize("name", ["threads", "max_seq_len", "max_sequences"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_options_are_checked(name: str, value: Any) -> None:
    with pytest.raises(CheckError, match=f"RunnerOptions.{name} must be an integer > 0"):
        RunnerOptions(**{name: value})


def test_a_graph_without_the_operator_is_refused(tmp_path: Path, decoder_folder: Callable[..., Path]) -> None:
    source = decoder_folder("llama")
    (tmp_path / "genai_config.json").write_bytes((source / "genai_config.json").read_bytes())
    model = onnx.load(str(source / "model.onnx"), load_external_data=False)
    kept = [node for node in model.graph.node if node.op_type != "GroupQueryAttention"]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(DecoderError, match="no GroupQueryAttention node"):
        OrtGqaRunner(tmp_path)
