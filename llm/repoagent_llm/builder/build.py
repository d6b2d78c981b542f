"""build(): a checkpoint folder (config.json, *.safetensors) or a GGUF file becomes a decoder folder."""

import enum
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

import numpy as np

from repoagent.errors import InvalidArgumentError
from repoagent_llm.builder import gqa_form, std_form
from repoagent_llm.builder.architecture import Architecture, read_architecture
from repoagent_llm.builder.decoder import DecoderWriter, Toolbox
from repoagent_llm.builder.gguf_checkpoint import GgufCheckpoint, find_gguf
from repoagent_llm.builder.graph import GraphWriter
from repoagent_llm.builder.paged_form import WEIGHTS_NAME, write_paged
from repoagent_llm.builder.products import BLOCKS, EightBits, FourBits, Plain, Product
from repoagent_llm.builder.safetensors import Checkpoint
from repoagent_llm.builder.weights import Weights
from repoagent_llm.runner.decoder_spec import CONFIG_NAME, PAGED_TYPE, STD_TYPE
from repoagent_llm.types.executor_errors import UnsupportedFeatureError

_TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)
_GRAPH: Final = "model.onnx"
_E = TypeVar("_E", bound=enum.Enum)


class Form(enum.Enum):
    """GQA: fast on CPU, onnxruntime-genai's layout. STD: standard operators, the source of TensorRT plans.

    PAGED: weights for a graph with paged attention, which OpenVINO runs.
    """

    GQA = "gqa"
    STD = "std"
    PAGED = "paged"


class Precision(enum.Enum):
    """Element type of weights and cache; INT8 and INT4 keep the cache and the embedding in float32.

    FP16 does not belong to the paged form, BF16 to no other.
    """

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"


_ROUNDED: Final = (Precision.INT8, Precision.INT4)


def build(
    checkpoint: str | Path,
    target: str | Path,
    *,
    form: Form | str = Form.GQA,
    precision: Precision | str = Precision.FP32,
    lora: bool = False,
    block: int = 32,
    capacity: int | None = None,
) -> Path:
    """Write ``target``: model.onnx, model.onnx.data, genai_config.json and the checkpoint's tokenizer files.

    ``checkpoint``: a folder of Hugging Face, or a GGUF file, of which INT4 in blocks of 32 takes Q4_0 as it is.
    The paged form has decoder.safetensors in the place of a graph.
    ``form`` and ``precision`` may be texts, such as "gqa" and "int4".
    ``lora``: the graph takes LoRA adapters, row by row. Such a graph runs here, not in onnxruntime-genai.
    ``block``: with INT4, how many neighbouring weights share a scale (16, 32, 64, 128 or 256): larger ones take less
    memory and are faster, smaller ones are closer to the checkpoint.
    ``capacity``, for the std form: the graph takes caches of this many tokens and no others, which TensorRT asks for. A
    sequence then holds ``capacity - 1`` tokens, because one place is reserved for rows without a token in a step.
    Raises ``UnsupportedFeatureError`` for models and combinations that are not supported, ``ConfigError`` and
    ``InvalidArgumentError`` for a checkpoint that cannot be read.
    """
    checkpoint, target = Path(checkpoint), Path(target)
    form, precision = _member(Form, form), _member(Precision, precision)
    if form is Form.STD and precision in _ROUNDED:
        raise UnsupportedFeatureError(f"{precision.value} in standard operators", "it belongs to the gqa form")
    if precision is Precision.BF16 and form is not Form.PAGED:
        raise UnsupportedFeatureError(f"bf16 in the {form.value} form", "it belongs to the paged form")
    if block not in BLOCKS:
        raise InvalidArgumentError(f"blocks of {block} weights: sizes are {', '.join(map(str, BLOCKS))}")
    found = find_gguf(checkpoint)
    source = None if found is None else GgufCheckpoint.open(found)
    shape = read_architecture(checkpoint) if source is None else source.shape
    if form is Form.GQA and shape.head_size % 16:
        raise UnsupportedFeatureError(
            f"a head size of {shape.head_size} in the gqa form", "ONNX Runtime's operator wants a multiple of 16"
        )
    if form is not Form.PAGED:
        shape.check_onnx(form.value)
    _check_capacity(capacity, form, shape)
    weights = Weights(source or Checkpoint(checkpoint), shape)
    tokenizer = {} if source is None else source.tokenizer_files()
    dtype = np.float16 if precision is Precision.FP16 else np.float32
    target.parent.mkdir(parents=True, exist_ok=True)
    with _within_memory(checkpoint), TemporaryDirectory(prefix=".building-", dir=target.parent) as beside:
        if form is Form.PAGED:
            paged = write_paged(Path(beside), shape, weights, matrices=precision.value, block=block, lora=lora)
            config = _config(shape, form, paged)
        else:
            config = _config(shape, form)
            with GraphWriter(Path(beside, _GRAPH)) as graph:
                tools = Toolbox(graph, shape, dtype, _product(graph, precision, dtype, block), lora=lora)
                writer = gqa_form.GqaForm(tools) if form is Form.GQA else std_form.StdForm(tools, capacity)
                DecoderWriter(tools, writer, weights).write()
                graph.save(gqa_form.OPSET if form is Form.GQA else std_form.OPSET)
        for name in _TOKENIZER_FILES:
            if name in tokenizer:
                Path(beside, name).write_text(tokenizer[name], encoding="utf-8")
            elif source is None and (checkpoint / name).is_file():
                shutil.copy(checkpoint / name, beside)
        Path(beside, CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        _move(Path(beside), target)
    return target


@contextmanager
def _within_memory(checkpoint: Path) -> Iterator[None]:
    """A file may be a hole: its size on disk is no bound of what its weights take."""
    try:
        yield
    except MemoryError as error:
        raise InvalidArgumentError(f"{checkpoint}: its weights take more memory than there is: {error}") from None


def _member(kind: type[_E], value: _E | str) -> _E:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(member.value for member in kind)
        raise InvalidArgumentError(f"there is no {kind.__name__.lower()} {value!r}: there are {known}") from None


def _check_capacity(capacity: int | None, form: Form, shape: Architecture) -> None:
    if capacity is None:
        return
    if form is not Form.STD:
        raise UnsupportedFeatureError("a fixed capacity", "it belongs to the std form")
    most = shape.context_length + 1
    if type(capacity) is not int or not 2 <= capacity <= most:
        raise InvalidArgumentError(
            f"capacity: expected 2 to {most} (the model's context length and 1), not {capacity!r}"
        )


def _move(source: Path, target: Path) -> None:
    """Nobody sees half a folder: what makes it a decoder comes last."""
    target.mkdir(exist_ok=True)
    (target / CONFIG_NAME).unlink(missing_ok=True)
    for file in sorted(source.iterdir(), key=lambda file: file.name == CONFIG_NAME):
        file.replace(target / file.name)


def _product(graph: GraphWriter, precision: Precision, dtype: Any, block: int) -> Product:
    if precision is Precision.INT4:
        return FourBits(graph, block)
    return EightBits(graph) if precision is Precision.INT8 else Plain(graph, dtype)


def _config(shape: Architecture, form: Form, paged: dict[str, Any] | None = None) -> dict[str, Any]:
    """genai_config.json as onnxruntime-genai's builder writes it; ``paged``: what describes a graph with pages."""
    past, present = ("{}_cache.%d",) * 2 if paged else ("past_key_values.%d.{}", "present.%d.{}")
    inputs = {"input_ids": "input_ids", **{f"past_{part}_names": past.format(part) for part in ("key", "value")}}
    if form is Form.GQA:
        inputs["attention_mask"] = "attention_mask"
    if form is Form.STD or (form is Form.GQA and shape.is_gpt2):
        inputs["position_ids"] = "position_ids"
    decoder: dict[str, Any] = {
        "filename": WEIGHTS_NAME if paged else _GRAPH,
        "head_size": shape.head_size,
        "hidden_size": shape.hidden_size,
        "inputs": inputs,
        "outputs": {"logits": "logits", **{f"present_{part}_names": present.format(part) for part in ("key", "value")}},
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
    }
    if paged:
        decoder |= {"type": PAGED_TYPE, "paged": paged}
    else:
        decoder["session_options"] = {"log_id": "onnxruntime-genai", "provider_options": []}
    if form is Form.STD:
        decoder["type"] = STD_TYPE
    end = list(shape.end_ids)
    return {
        "model": {
            "bos_token_id": shape.begin_id,
            "context_length": shape.context_length,
            "decoder": decoder,
            "eos_token_id": end[0] if len(end) == 1 else end,
            "pad_token_id": shape.pad_id if shape.pad_id is not None else (end[0] if end else 0),
            "type": shape.kind,
            "vocab_size": shape.vocab_size,
        },
        "search": {"max_length": shape.context_length, "past_present_share_buffer": True, "num_beams": 1},
    }
