"""DecoderSpec: the shape of a decoder folder and the names of its graph's tensors, read from genai_config.json.

The file has the layout of onnxruntime-genai. Graphs of standard operators carry the same file with
``"type": "std-decoder"`` in the decoder section; onnxruntime-genai itself cannot run those.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt

from repoagent.beneath.opening import open_beneath, relative_parts
from repoagent.errors import UnsafePathError
from repoagent.nested_text import read_json
from repoagent_llm.types.executor_errors import CheckError, DecoderError, shown

_LONGEST: Final = 512


@dataclass(frozen=True, slots=True)
class Section:
    """An object of the file. Each method raises ``DecoderError``, which names the key and what it must be."""

    values: Mapping[str, Any]
    path: str
    source: str

    def section(self, key: str) -> "Section":
        """The object under ``key``."""
        found = self._required(key)
        if not isinstance(found, dict):
            raise self.wrong(key, "an object", found)
        return Section(found, self._full(key), self.source)

    def optional_section(self, key: str) -> "Section | None":
        """The object under ``key``; None where there is none."""
        return None if self.values.get(key) is None else self.section(key)

    def integer(self, key: str, low: int, high: int) -> int:
        """The whole number under ``key``, within ``low..high``."""
        found = self._required(key)
        if type(found) is not int or not low <= found <= high:
            raise self.wrong(key, f"a whole number from {low} to {high}", found)
        return found

    def integers(self, key: str, low: int, high: int, most: int) -> tuple[int, ...]:
        """The whole number under ``key``, or the list of them; at most ``most``, each within ``low..high``."""
        found = self.values.get(key)
        listed = [] if found is None else found if isinstance(found, list) else [found]
        if len(listed) > most or any(type(item) is not int or not low <= item <= high for item in listed):
            raise self.wrong(key, f"a whole number from {low} to {high}, or a list of at most {most} of them", found)
        return tuple(listed)

    def text(self, key: str) -> str:
        """The name under ``key``: of a tensor or a file."""
        found = self._required(key)
        if not isinstance(found, str) or not found or len(found) > _LONGEST or "\0" in found:
            raise self.wrong(key, f"a name of at most {_LONGEST} characters", found)
        return found

    def pattern(self, key: str) -> str:
        """A name with one ``%d``, in the place of the layer's number."""
        found = self.text(key)
        if found.count("%") != 1 or "%d" not in found:
            raise self.wrong(key, "a name with %d in the place of the layer's number", found)
        return found

    def _required(self, key: str) -> Any:
        if key not in self.values:
            raise DecoderError(f"the key '{self._full(key)}' is missing", source=self.source)
        return self.values[key]

    def _full(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def wrong(self, key: str, expected: str, found: object) -> DecoderError:
        """The error for a value that is not what it must be."""
        return DecoderError(f"the key '{self._full(key)}' must be {expected}, not {shown(found)}", source=self.source)


CONFIG_NAME: Final = "genai_config.json"
STD_TYPE: Final = "std-decoder"
PAGED_TYPE: Final = "paged-decoder"
_MOST_BYTES: Final = 4 << 20
"""Of the file, which has some kilobytes."""
_MOST_LAYERS: Final = 4096
_MOST_HEADS: Final = 1 << 16
_MOST_WIDTH: Final = 1 << 24
"""Of a vocabulary, and of what one token is in a layer."""
_MOST_TOKENS: Final = 2**31 - 1
_MOST_END_IDS: Final = 1024


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """How many tokens, itself included, a token attends to in some ``layers``."""

    size: int
    layers: frozenset[int]


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder folder, or a graph in memory. Names with ``%d`` take the layer's number.

    ``graph``: the graph where it is not a file; ``weights``: those of its weights that it does not hold itself.
    ``paged``: of a folder for paged attention what describes its graph; ``filename`` is the file of its weights.
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
    window: SlidingWindow | None = None
    graph: bytes | None = None
    weights: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    paged: Section | None = None

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
    source = str(folder / CONFIG_NAME)
    try:
        with open_beneath(folder, CONFIG_NAME) as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise DecoderError(
            f"{_instead(folder)}. A decoder folder needs {CONFIG_NAME}, as onnxruntime-genai's model builder and "
            "'repoagent_llm.builder' write it",
            source=source,
        ) from error
    if len(content) > _MOST_BYTES:
        raise DecoderError(f"the file has more than {_MOST_BYTES} bytes", source=source)
    return _parse(folder, content, source)


def _instead(place: Path) -> str:
    """What there is in the place of a decoder folder, for an error."""
    with suppress(OSError):
        found = {path.suffix for path in (place.iterdir() if place.is_dir() else [place])}
        for suffix, kind in {".gguf": "GGUF file", ".safetensors": "checkpoint"}.items():
            if suffix in found and place.exists():
                return f"this is a {kind}: 'repoagent convert ... --to decoder' makes a decoder folder of it"
    return "File does not exist"


def parse_spec(text: str, graph: bytes, weights: Mapping[str, npt.NDArray[Any]]) -> DecoderSpec:
    """The specification of a graph in memory; ``text`` is what genai_config.json would hold."""
    return replace(_parse(Path(), text, "the engine's JSON configuration"), graph=graph, weights=dict(weights))


def _parse(folder: Path, text: str | bytes, source: str) -> DecoderSpec:
    try:
        values = read_json(text)
    except (TypeError, ValueError) as error:  # a ValueError too: text that is not UTF-8
        raise DecoderError(f"cannot be read: {error}", source=source) from error
    if not isinstance(values, dict):
        raise DecoderError(f"cannot be read: it must hold an object, not a {type(values).__name__}", source=source)
    return _spec(folder, Section(values, "", source).section("model"))


def _spec(folder: Path, model: Section) -> DecoderSpec:
    decoder = model.section("decoder")
    inputs, outputs = decoder.section("inputs"), decoder.section("outputs")
    layers = decoder.integer("num_hidden_layers", 1, _MOST_LAYERS)
    return DecoderSpec(
        folder=folder,
        filename=_file_name(decoder),
        standard=decoder.values.get("type") == STD_TYPE,
        vocab_size=model.integer("vocab_size", 1, _MOST_WIDTH),
        context_length=model.integer("context_length", 2, _MOST_TOKENS),
        layers=layers,
        kv_heads=decoder.integer("num_key_value_heads", 1, _MOST_HEADS),
        head_size=decoder.integer("head_size", 1, _MOST_HEADS),
        hidden_size=decoder.integer("hidden_size", 1, _MOST_WIDTH),
        end_ids=model.integers("eos_token_id", -_MOST_TOKENS, _MOST_TOKENS, _MOST_END_IDS),
        past_key=inputs.pattern("past_key_names"),
        past_value=inputs.pattern("past_value_names"),
        present_key=outputs.pattern("present_key_names"),
        present_value=outputs.pattern("present_value_names"),
        logits=outputs.text("logits"),
        window=_window(decoder, layers),
        paged=decoder.section("paged") if decoder.values.get("type") == PAGED_TYPE else None,
    )


def _file_name(decoder: Section) -> str:
    """The graph's file; only what the folder holds is the model's own."""
    name = decoder.text("filename")
    try:
        relative_parts(name)
    except UnsafePathError as error:
        raise decoder.wrong("filename", "the name of a file in the decoder's folder", name) from error
    return name


def _window(decoder: Section, layers: int) -> SlidingWindow | None:
    """What the file says of a window. How onnxruntime-genai feeds and keeps the tokens in it is not of interest."""
    section = decoder.optional_section("sliding_window")
    if section is None or section.values.get("window_size") in (None, 0, -1):
        return None
    size = section.integer("window_size", 1, _MOST_TOKENS)
    listed = section.integers("layers", 0, layers - 1, layers)
    return SlidingWindow(size, frozenset(listed) or frozenset(range(layers)))


def check_form(model: Path | DecoderSpec, *, standard: bool) -> DecoderSpec:
    """The specification of a folder, or this one; raises if its graph has the other form."""
    spec = read_spec(model) if isinstance(model, Path) else model
    if spec.paged is not None:
        raise CheckError(f"{spec.place}: the folder is one for paged attention, expected one with a graph")
    if spec.standard != standard:
        forms = {True: "of standard operators", False: "with GroupQueryAttention"}
        raise CheckError(f"{spec.place}: the graph is one {forms[spec.standard]}, expected one {forms[standard]}")
    return spec
