"""A decoder folder for paged attention: genai_config.json describes the graph, one safetensors file holds its weights.

A graph with OpenVINO's operator cannot be stored, so it is built from these when the decoder is loaded.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from repoagent.beneath.opening import open_beneath
from repoagent.nested_text import read_json
from repoagent_llm.runner.decoder_spec import PAGED_TYPE, DecoderSpec, Section
from repoagent_llm.types.executor_errors import DecoderError

LAYOUT_VERSION: Final = 2
MATRICES: Final = ("fp32", "bf16", "int8", "int4")
"""How matrices are kept."""
GATES: Final = ("silu", "gelu", "clamped", "none")
HEAD_NORMS: Final = ("none", "head", "all")
ROUTERS: Final = ("chosen", "all", "shares")
MULTIPLIERS: Final = ("embedding", "attention", "residual", "logits")
WIDE_BLOCK: Final = 32
"""Weights of eight bits that share a scale, where not a whole row does."""
_LARGEST: Final = 1e30
_DTYPES: Final = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I8": "<i1", "U8": "<u1"}
_MOST: Final = 1 << 24
_MOST_HEAD: Final = 1 << 26
_DIGITS: Final = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    """Layers with experts: how many, how many of them a token uses, and their inner sizes; 0 is no shared one.

    ``router``: what the chosen ones count: "chosen" (the softmax over them), "all" (their parts of the softmax over
    all) or "shares" (the same, divided by their sum).
    """

    count: int
    used: int
    inner_size: int
    shared_size: int
    router: str


@dataclass(frozen=True, slots=True)
class PagedLayout:
    """What the graph consists of; which norms, biases and experts a layer has follows from the weights.

    ``block``: of weights, with int4. ``rotary_size``: columns of a head that turn; 0: positions are learned.
    ``ropes``: see rope_speeds; ``layer_ropes``: which of them each layer has, -1 is none. ``windows``: of each layer, 0
    attends to everything before. ``root_mean_square``: otherwise norms are layer norms. ``gate``: the activation
    of the MLP. ``head_norms``: over what queries and keys are normalised. ``multipliers``: of embeddings, scores of
    attention, what layers add, and logits.
    """

    matrices: str
    block: int
    sha256: str
    heads: int
    inner_size: int
    norm_epsilon: float
    rotary_size: int
    ropes: tuple[Mapping[str, Any], ...]
    layer_ropes: tuple[int, ...]
    windows: tuple[int, ...]
    root_mean_square: bool
    gate: str
    head_norms: str
    multipliers: Mapping[str, float]
    experts: ExpertLayout | None
    lora: bool


def read_layout(spec: DecoderSpec) -> PagedLayout:
    """What genai_config.json says of the graph; raises ``DecoderError`` that names a key."""
    section = spec.paged
    if section is None:
        raise DecoderError(f"the decoder is not of the type {PAGED_TYPE!r}", source=str(spec.folder))
    section.integer("version", LAYOUT_VERSION, LAYOUT_VERSION)
    sha256 = section.text("sha256")
    if len(sha256) != 64 or not set(sha256) <= _DIGITS:
        raise section.wrong("sha256", "64 hexadecimal digits", sha256)
    heads = section.integer("heads", 1, _MOST)
    if heads % spec.kv_heads:
        raise section.wrong("heads", f"a multiple of the {spec.kv_heads} KV heads", heads)
    ropes = section.values.get("ropes")
    if not isinstance(ropes, list) or len(ropes) > spec.layers or not all(isinstance(rope, dict) for rope in ropes):
        raise section.wrong("ropes", f"a list of at most {spec.layers} objects", ropes)
    rotary_size = section.integer("rotary_size", 0, _MOST)
    if rotary_size % 2 or rotary_size > spec.head_size:
        raise section.wrong("rotary_size", f"an even number up to {spec.head_size}", rotary_size)
    multipliers = section.section("multipliers")
    return PagedLayout(
        matrices=_choice(section, "matrices", MATRICES),
        block=section.integer("block", 1, _MOST),
        sha256=sha256,
        heads=heads,
        inner_size=section.integer("inner_size", 1, _MOST),
        norm_epsilon=_fraction(section, "norm_epsilon"),
        rotary_size=rotary_size,
        ropes=tuple(ropes),
        layer_ropes=_per_layer(section, "layer_ropes", spec, -1, len(ropes) - 1),
        windows=_per_layer(section, "windows", spec, 0, 2**31 - 1),
        gate=_choice(section, "gate", GATES),
        head_norms=_choice(section, "head_norms", HEAD_NORMS),
        multipliers={name: _factor(multipliers, name) for name in MULTIPLIERS},
        experts=_experts(section.optional_section("experts")),
        root_mean_square=_truth(section, "root_mean_square"),
        lora=_truth(section, "lora"),
    )


def _experts(section: Section | None) -> ExpertLayout | None:
    if section is None:
        return None
    count = section.integer("count", 1, _MOST)
    return ExpertLayout(
        count=count,
        used=section.integer("used", 1, count),
        inner_size=section.integer("inner_size", 1, _MOST),
        shared_size=section.integer("shared_size", 0, _MOST),
        router=_choice(section, "router", ROUTERS),
    )


def _choice(section: Section, key: str, known: tuple[str, ...]) -> str:
    found = section.text(key)
    if found not in known:
        raise section.wrong(key, f"one of {', '.join(known)}", found)
    return found


def _per_layer(section: Section, key: str, spec: DecoderSpec, low: int, high: int) -> tuple[int, ...]:
    found = section.integers(key, low, high, spec.layers)
    if len(found) != spec.layers:
        raise section.wrong(key, f"a list of {spec.layers} numbers", found)
    return found


def _fraction(section: Section, key: str) -> float:
    found = section.values.get(key)
    if type(found) is not float or not 0 <= found < 1:
        raise section.wrong(key, "a number from 0 to 1", found)
    return found


def _factor(section: Section, key: str) -> float:
    found = section.values.get(key)
    if type(found) is not float or not abs(found) < _LARGEST:
        raise section.wrong(key, "a number", found)
    return found


def _truth(section: Section, key: str) -> bool:
    found = section.values.get(key)
    if type(found) is not bool:
        raise section.wrong(key, "true or false", found)
    return found


class FolderWeights:
    """The arrays of a safetensors file by name, mapped. ``own``: copies of them, so that the file may go."""

    def __init__(self, spec: DecoderSpec, sha256: str, *, own: bool) -> None:
        self._place = spec.place
        try:
            with open_beneath(spec.folder, spec.filename) as file:
                data = np.memmap(file, np.uint8, "r")
        except (OSError, ValueError) as error:
            raise DecoderError(f"the weights cannot be read: {error}", source=self._place) from error
        self._data: npt.NDArray[np.uint8] = np.array(data) if own else data
        if hashlib.sha256(self._data.data).hexdigest() != sha256:
            raise DecoderError("the weights are not those that genai_config.json names", source=self._place)
        self._entries, self._start = self._head()

    def _head(self) -> tuple[Mapping[str, Any], int]:
        size = int(self._data[:8].view("<u8")[0]) if len(self._data) >= 8 else 0
        if not 0 < size <= min(len(self._data) - 8, _MOST_HEAD):
            raise DecoderError("the file of weights is not a safetensors file", source=self._place)
        try:
            head = read_json(self._data[8 : 8 + size].tobytes())
        except ValueError as error:
            raise DecoderError(f"the head of the weights cannot be read: {error}", source=self._place) from error
        if not isinstance(head, dict):
            raise DecoderError("the head of the weights must be an object", source=self._place)
        return head, 8 + size

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def shape(self, name: str) -> Sequence[Any]:
        """The dimensions that the file gives the array; nothing where it has none."""
        entry = self._entries.get(name)
        found = entry.get("shape") if isinstance(entry, dict) else None
        return found if isinstance(found, list) else []

    def array(self, name: str, kind: str, *shape: int) -> npt.NDArray[Any]:
        """The array of that name; raises ``DecoderError`` where it has another type or shape, or lies elsewhere."""
        entry = self._entries.get(name)
        dtype = np.dtype(_DTYPES[kind])
        size = math.prod(shape) * dtype.itemsize
        if not isinstance(entry, dict) or entry.get("dtype") != kind or entry.get("shape") != list(shape):
            raise DecoderError(f"the weights have no {name!r} of {kind} {list(shape)}", source=self._place)
        offsets = entry.get("data_offsets")
        if not isinstance(offsets, list) or len(offsets) != 2 or any(type(item) is not int for item in offsets):
            raise DecoderError(f"the weights {name!r} lie nowhere", source=self._place)
        start, stop = offsets
        if not 0 <= start <= stop <= len(self._data) - self._start or stop - start != size:
            raise DecoderError(f"the weights {name!r} lie outside of the file", source=self._place)
        raw = self._data[self._start + start : self._start + stop]
        if (self._start + start) % dtype.itemsize:
            raw = np.array(raw)
        return raw.view(dtype).reshape(shape)
