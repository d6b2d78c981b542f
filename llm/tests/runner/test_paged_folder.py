"""Folders for paged attention: what is in them is checked before it is used."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_llm.builder import Form, Precision, build
from repoagent_llm.runner.decoder_spec import CONFIG_NAME, read_spec
from repoagent_llm.runner.ort_forms import OrtGqaRunner
from repoagent_llm.runner.paged_folder import FolderWeights, read_layout
from repoagent_llm.runner.runner_options import RunnerOptions
from repoagent_llm.types.executor_errors import CheckError, DecoderError, UnsupportedFeatureError

from llm.tests.conftest import MakeFolder


@pytest.fixture
def folder(decoder_folder: MakeFolder, tmp_path: Path) -> Path:
    """A folder of its own."""
    return shutil.copytree(decoder_folder("llama", Form.PAGED, Precision.INT4), tmp_path / "decoder")


def _change(folder: Path, **values: Any) -> None:
    config = json.loads((folder / CONFIG_NAME).read_text())
    config["model"]["decoder"]["paged"].update(values)
    (folder / CONFIG_NAME).write_text(json.dumps(config))


def _weights(folder: Path) -> FolderWeights:
    spec = read_spec(folder)
    return FolderWeights(spec, read_layout(spec).sha256, own=False)


def test_weights_lie_where_their_head_says(folder: Path, checkpoint: Callable[[str], Path]) -> None:
    weights = _weights(folder)
    table = weights.array("embedding", "F32", 96, 64)
    assert not table.flags.owndata  # mapped
    assert "head" in weights
    assert weights.array("layers.0.qkv", "U8", 128, 4, 8).dtype == np.uint8
    for wrong in (("embedding", "F32", 96, 65), ("embedding", "I8", 96, 64), ("nothing", "F32", 1)):
        with pytest.raises(DecoderError, match=f"have no '{wrong[0]}'"):
            weights.array(wrong[0], wrong[1], *wrong[2:])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("version", 1),
        ("matrices", "int3"),
        ("block", 0),
        ("sha256", "0" * 63),
        ("heads", 3),
        ("inner_size", True),
        ("norm_epsilon", 1),
        ("rotary_size", 18),
        ("rotary_size", 3),
        ("ropes", [1]),
        ("layer_ropes", [0, 1]),
        ("windows", [0, -1]),
        ("windows", [0]),
        ("gate", "relu"),
        ("head_norms", True),
        ("multipliers", 1),
        ("experts", []),
        ("lora", None),
    ],
)
def test_a_wrong_description_is_refused_by_its_key(key: str, value: object, folder: Path) -> None:
    _change(folder, **{key: value})
    with pytest.raises(DecoderError, match=f"'model.decoder.paged.{key}' must be"):
        read_layout(read_spec(folder))


def _head(file: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    size = int.from_bytes(file[:8], "little")
    head = json.loads(file[8 : 8 + size])
    change(head)
    return file[:8] + json.dumps(head).encode().ljust(size) + file[8 + size :]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file[:-1], "not those that"),
        (lambda file: file[:4], "not a safetensors file"),
        (lambda file: b"\xff" * 8 + file[8:], "not a safetensors file"),
        (lambda file: file[:8] + b"[" * 1000 + file[1008:], "head of the weights cannot be read"),
        (lambda file: _head(file, lambda head: head["embedding"].update(data_offsets=[0, 1 << 62])), "outside"),
        (lambda file: _head(file, lambda head: head["embedding"].update(data_offsets=[-4, 96 * 256 - 4])), "outside"),
        (lambda file: _head(file, lambda head: head["embedding"].update(data_offsets=[0])), "lie nowhere"),
        (lambda file: _head(file, lambda head: head.update(embedding=5)), "have no 'embedding'"),
    ],
)
def test_a_file_that_lies_is_refused(change: Callable[[bytes], bytes], message: str, folder: Path) -> None:
    path = folder / read_spec(folder).filename
    path.write_bytes(change(path.read_bytes()))
    if message != "not those that":
        _change(folder, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(DecoderError, match=message):
        _weights(folder).array("embedding", "F32", 96, 64)


def test_onnx_runtime_does_not_take_such_a_folder(folder: Path) -> None:
    with pytest.raises(CheckError, match="is one for paged attention"):
        OrtGqaRunner(folder, RunnerOptions())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "paged", "precision": "fp16"}, "fp16 in the paged form"),
        ({"form": "gqa", "precision": "bf16"}, "bf16 in the gqa form"),
        ({"form": "paged", "precision": "int4", "block": 32}, "a layer has 80 inputs"),
        ({"form": "paged", "capacity": 9}, "belongs to the std form"),
    ],
)
def test_the_builder_refuses_what_the_form_has_not(
    options: dict[str, Any], message: str, tmp_path: Path, checkpoint: Callable[[str], Path]
) -> None:
    with pytest.raises(UnsupportedFeatureError, match=message):
        build(checkpoint("llama"), tmp_path / "decoder", **options)
    assert not (tmp_path / "decoder").exists()
