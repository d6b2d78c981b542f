"""DecoderSpec: the shape of a decoder folder and the names of its graph's tensors, read from genai_config.json.

The file has the layout of onnxruntime-genai. Graphs of standard operators carry the same file with
``"type": "std-decoder"`` in the decoder section; onnxruntime-genai itself cannot run those.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt

from repoagent.executor.types.errors import CheckError, DecoderError

__all__ = ["CONFIG_NAME", "STD_TYPE", "DecoderSpec", "check_form", "parse_spec", "read_spec"]

CONFIG_NAME: Final = "genai_config.json"
STD_TYPE: Final = "std-decoder"


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder folder, or a graph in memory. Names with ``%d`` take the layer's number.

    ``graph``: the graph where it is not a file; ``weights``: those of its weights that it does not hold itself.
    """

    folder: Path
    filename: str
    standard: bool
    vocab_size: int
    context_length: int
    layers: int
    kv_heads: int
    head_size: int
    hidden_size: int
    end_ids: tuple[int, ...]
    past_key: str
    past_value: str
    present_key: str
    present_value: str
    logits: str
    graph: bytes | None = None
    weights: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """What errors call the graph."""
        return "the engine buffer" if self.graph is not None else str(self.folder / self.filename)

    def past(self, layer: int) -> tuple[str, str]:
        """The names of a layer's cache inputs, key and value."""
        return self.past_key % layer, self.past_value % layer

    def present(self, layer: int) -> tuple[str, str]:
        """The names of a layer's cache outputs, key and value."""
        return self.present_key % layer, self.present_value % layer


def read_spec(folder: Path) -> DecoderSpec:
    """The folder's specification; raises ``DecoderError`` that names the file and the key that is missing or wrong."""
    path = folder / CONFIG_NAME
    if not path.is_file():
        raise DecoderError(
            f"File does not exist. A decoder folder needs {CONFIG_NAME}, as onnxruntime-genai's model builder and "
            "'repoagent.executor.builder' write it",
            source=str(path),
        )
    return _parse(folder, path.read_text(encoding="utf-8"), str(path))


def parse_spec(text: str, graph: bytes, weights: Mapping[str, npt.NDArray[Any]]) -> DecoderSpec:
    """The specification of a graph in memory; ``text`` is what genai_config.json would hold."""
    return replace(_parse(Path(), text, "the engine's JSON configuration"), graph=graph, weights=dict(weights))


def _parse(folder: Path, text: str, source: str) -> DecoderSpec:
    try:
        return _spec(folder, json.loads(text)["model"])
    except KeyError as error:
        raise DecoderError(f"the key {error} is missing", source=source) from error
    except (TypeError, ValueError) as error:
        raise DecoderError(f"cannot be read: {error}", source=source) from error


def _spec(folder: Path, model: Mapping[str, Any]) -> DecoderSpec:
    decoder = model["decoder"]
    inputs, outputs = decoder["inputs"], decoder["outputs"]
    end = model.get("eos_token_id")
    return DecoderSpec(
        folder=folder,
        filename=str(decoder["filename"]),
        standard=decoder.get("type") == STD_TYPE,
        vocab_size=int(model["vocab_size"]),
        context_length=int(model["context_length"]),
        layers=int(decoder["num_hidden_layers"]),
        kv_heads=int(decoder["num_key_value_heads"]),
        head_size=int(decoder["head_size"]),
        hidden_size=int(decoder["hidden_size"]),
        end_ids=() if end is None else tuple(end) if isinstance(end, list) else (int(end),),
        past_key=str(inputs["past_key_names"]),
        past_value=str(inputs["past_value_names"]),
        present_key=str(outputs["present_key_names"]),
        present_value=str(outputs["present_value_names"]),
        logits=str(outputs["logits"]),
    )


def check_form(model: Path | DecoderSpec, *, standard: bool) -> DecoderSpec:
    """The specification of a folder, or this one; raises if its graph has the other form."""
    spec = read_spec(model) if isinstance(model, Path) else model
    if spec.standard != standard:
        forms = {True: "of standard operators", False: "with GroupQueryAttention"}
        raise CheckError(f"{spec.place}: the graph is one {forms[spec.standard]}, expected one {forms[standard]}")
    return spec
