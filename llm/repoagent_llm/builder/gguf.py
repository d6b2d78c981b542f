"""Reading GGUF, the format of llama.cpp: keys with values, a list of tensors, their raw data.

Files come from anywhere. No number of a file is used, and nothing is allocated by it, before it is checked.
"""

import math
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from repoagent.errors import InvalidArgumentError, UnsupportedError
from repoagent_llm.types.executor_errors import shown

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
BLOCK: Final = 32
"""Weights that share a scale in Q4_0 and Q8_0."""
_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_MOST_HEAD: Final = 1 << 26
"""Bytes of all that stands before the tensors: some 20 MB with a vocabulary of 260,000."""
_MOST_KEYS: Final = 1 << 12
_MOST_TENSORS: Final = 1 << 16
_MOST_TEXTS: Final = 1 << 21
"""Texts in all arrays together."""
_MOST_NAME: Final = 256
_MOST_RANK: Final = 4
_ALIGNMENTS: Final = tuple(1 << power for power in range(3, 17))
_FORMATS: Final = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 10: "<Q", 11: "<q", 12: "<d"}
_TRUTH: Final = 7
_TEXT: Final = 8
_ARRAY: Final = 9
_UNREAD: Final = (
    {3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS"}
    | {17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8"}
    | {25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"}
)
"""Types of tensors that there are, too; a message names them."""


def _fields(**fields: tuple[Any, ...]) -> np.dtype[Any]:
    return np.dtype([(name, *kind) for name, kind in fields.items()])


_Q4_0: Final = _fields(scale=("<f2",), levels=("u1", 16))
_Q8_0: Final = _fields(scale=("<f2",), levels=("i1", 32))
_Q4_K: Final = _fields(scale=("<f2",), least=("<f2",), parts=("u1", 12), levels=("u1", 128))
_Q5_K: Final = _fields(scale=("<f2",), least=("<f2",), parts=("u1", 12), high=("u1", 32), levels=("u1", 128))
_Q6_K: Final = _fields(low=("u1", 128), high=("u1", 64), parts=("i1", 16), scale=("<f2",))


def q4_0_levels(raw: Bytes) -> tuple[Bytes, npt.NDArray[np.float16]]:
    """Levels from 0 to 15 [blocks, 32], of which 8 is zero, and scales [blocks]."""
    blocks = raw.view(_Q4_0)
    levels = blocks["levels"]
    return np.concatenate([levels & 15, levels >> 4], axis=-1), blocks["scale"]


def q8_0_levels(raw: Bytes) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """Levels [blocks, 32] and scales [blocks]."""
    blocks = raw.view(_Q8_0)
    return blocks["levels"], blocks["scale"]


def _scaled(levels: npt.NDArray[Any], scales: npt.NDArray[Any]) -> Floats:
    values: Floats = levels.astype(np.float32) * scales.astype(np.float32)[..., None]
    return values


def _from_q4_0(raw: Bytes) -> Floats:
    levels, scales = q4_0_levels(raw)
    return _scaled(levels.astype(np.int8) - 8, scales)


def _from_q4_k(raw: Bytes, form: np.dtype[Any] = _Q4_K) -> Floats:
    """Eight parts of 32 weights, each with a factor and a least value of six bits. In Q5_K the fifth bit of a weight
    lies in a byte that it shares with the weights of its place in other parts."""
    blocks = raw.view(form)
    first, second, both = np.split(blocks["parts"], 3, axis=-1)
    factors = np.concatenate([first & 63, (both & 15) | (first >> 6 << 4)], axis=-1)
    least = np.concatenate([second & 63, (both >> 4) | (second >> 6 << 4)], axis=-1)
    packed = blocks["levels"].reshape(-1, 4, 32)
    levels = np.stack([packed & 15, packed >> 4], axis=2).reshape(-1, 8, 32)
    if form is _Q5_K:
        levels |= (blocks["high"][:, None] >> np.arange(8, dtype=np.uint8)[:, None] & 1) << 4
    low = blocks["least"].astype(np.float32)[:, None] * least
    values: Floats = _scaled(levels, blocks["scale"].astype(np.float32)[:, None] * factors) - low[..., None]
    return values


def _from_q6_k(raw: Bytes) -> Floats:
    """Sixteen parts of 16 weights, each with a factor; levels have four bits in one place and two in another."""
    blocks = raw.view(_Q6_K)
    packed = blocks["low"].reshape(-1, 2, 64)
    low = np.stack([packed & 15, packed >> 4], axis=2).reshape(-1, 2, 4, 32)
    high = blocks["high"].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    levels = (low | high << 4).astype(np.int8).reshape(-1, 16, 16) - 32
    return _scaled(levels, blocks["scale"].astype(np.float32)[:, None] * blocks["parts"])


def _from_bf16(raw: Bytes) -> Floats:
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A type of tensors: ``weights`` of a row in ``size`` bytes."""

    name: str
    weights: int
    size: int
    floats: Callable[[Bytes], Floats]


_KINDS: Final = {
    0: _Kind("F32", 1, 4, lambda raw: raw.view("<f4")),
    1: _Kind("F16", 1, 2, lambda raw: raw.view("<f2").astype(np.float32)),
    2: _Kind("Q4_0", BLOCK, 18, _from_q4_0),
    8: _Kind("Q8_0", BLOCK, 34, lambda raw: _scaled(*q8_0_levels(raw))),
    12: _Kind("Q4_K", 256, 144, _from_q4_k),
    13: _Kind("Q5_K", 256, 176, lambda raw: _from_q4_k(raw, _Q5_K)),
    14: _Kind("Q6_K", 256, 210, _from_q6_k),
    30: _Kind("BF16", 1, 2, _from_bf16),
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies; ``shape`` in NumPy's order, so that a matrix is [outputs, inputs]."""

    kind: _Kind
    shape: tuple[int, ...]
    start: int
    size: int
    path: Path = Path()


class GgufFile:
    """A file's values and tensors. Arrays of numbers are NumPy's, those of texts are lists.

    Nothing is mapped: the owner of the file may cut it short meanwhile, which would end the process.
    """

    def __init__(self, path: Path, *others: Path) -> None:
        """Read the head. ``others``: the parts of the same model behind it, which have tensors alone.

        Raises:
            InvalidArgumentError: a file is not one, is damaged, or contradicts itself or another.
            UnsupportedError: it has a version or a type of tensors that is not read.
        """
        self.path = path
        if path.stat().st_size < len(_MAGIC):
            raise InvalidArgumentError(f"{path}: is not a GGUF file")
        with path.open("rb") as file:
            self._size = os.fstat(file.fileno()).st_size
            head = _Head(file, self._size, str(path))
            count = head.begin()
            self.values: Mapping[str, Any] = head.values()
            self.tensors = self._placed(head.tensors(count), head.place)
            self._head = head.place
        for number, other in enumerate(others, 1):
            self._join(GgufFile(other), [number, len(others) + 1])

    def _join(self, part: "GgufFile", wanted: list[int]) -> None:
        found = [part.values.get(key) for key in ("split.no", "split.count")]
        if any(type(value) is not int for value in found) or found != wanted:
            keys = f"the keys split.no and split.count must be {wanted[0]} and {wanted[1]}"
            raise InvalidArgumentError(f"{part.path}: {keys}, not {shown(found)}")
        self._head += part._head
        if twice := sorted(self.tensors.keys() & part.tensors.keys()):
            raise InvalidArgumentError(f"{part.path}: the tensor {twice[0]!r:.80} lies in an earlier part, too")
        self.tensors |= part.tensors
        if self._head > _MOST_HEAD or len(self.tensors) > _MOST_TENSORS:
            raise InvalidArgumentError(
                f"{part.path}: the parts up to it have more than {_MOST_TENSORS} tensors, or {_MOST_HEAD} bytes before "
                "their tensors"
            )

    def _placed(self, found: dict[str, GgufTensor], place: int) -> dict[str, GgufTensor]:
        """The tensors where they lie in the file; ``place``: where the head ends."""
        step = self.values.get("general.alignment", BLOCK)
        if type(step) is not int or step not in _ALIGNMENTS:
            raise InvalidArgumentError(f"{self.path}: general.alignment must be a power of two, not {shown(step)}")
        base = -(-place // step) * step
        end, before = base, ""
        for name, tensor in sorted(found.items(), key=lambda item: item[1].start):
            start, stop = base + tensor.start, base + tensor.start + tensor.size
            if tensor.start % step:
                raise InvalidArgumentError(
                    f"{self.path}: tensor {name!r:.80} begins at {tensor.start}, not at {step} * n"
                )
            if start < end:
                raise InvalidArgumentError(f"{self.path}: the tensors {before!r:.80} and {name!r:.80} overlap")
            if stop > self._size:
                raise InvalidArgumentError(f"{self.path}: cut short, the tensor {name!r:.80} lies behind its end")
            found[name] = GgufTensor(tensor.kind, tensor.shape, start, tensor.size, self.path)
            end, before = stop, name
        return found

    def raw(self, name: str, part: int | None = None) -> Bytes:
        """The bytes of a tensor, or of number ``part`` of its first dimension."""
        tensor = self.tensors[name]
        size = tensor.size if part is None else tensor.size // tensor.shape[0]
        found = np.fromfile(tensor.path, np.uint8, size, offset=tensor.start + (part or 0) * size)
        if len(found) < size:
            raise InvalidArgumentError(f"{tensor.path}: cut short, the tensor {name!r:.80} changed while it was read")
        return found

    def floats(self, name: str, part: int | None = None) -> Floats:
        """What the tensor, or a part of it, stands for, in float32."""
        tensor = self.tensors[name]
        shape = tensor.shape if part is None else tensor.shape[1:]
        with np.errstate(all="ignore"):  # what is no finite number is refused where it is written
            return np.asarray(tensor.kind.floats(self.raw(name, part)), np.float32).reshape(shape)


class _Head:
    """Reads on in ``file``, and not behind the end of its ``size`` bytes."""

    def __init__(self, file: BinaryIO, size: int, source: str) -> None:
        self._file = file
        self._end = min(size, _MOST_HEAD)
        self._source = source
        self._count = 0
        self._texts = 0
        self.place = 0

    def _wrong(self, text: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self._source}: {text}")

    def begin(self) -> int:
        """How many tensors there are."""
        if self._take(4) != _MAGIC:
            raise self._wrong("is not a GGUF file")
        version = self._number("<I")
        if version not in _VERSIONS:
            order = "; its numbers are big-endian" if int.from_bytes(version.to_bytes(4, "little"), "big") < 9 else ""
            raise UnsupportedError(f"{self._source}: GGUF of version {version}{order}; versions 2 and 3 are read")
        tensors, self._count = self._number("<Q"), self._number("<Q")
        for count, most, what in ((tensors, _MOST_TENSORS, "tensors"), (self._count, _MOST_KEYS, "keys")):
            if count > most:
                raise self._wrong(f"has {count} {what}; at most {most} are read")
        return int(tensors)

    def values(self) -> dict[str, Any]:
        """All keys."""
        found: dict[str, Any] = {}
        for _ in range(self._count):
            key = self._text(_MOST_NAME)
            if key in found:
                raise self._wrong(f"has the key {key!r:.80} twice")
            found[key] = self._value(key, self._number("<I"))
        return found

    def tensors(self, count: int) -> dict[str, GgufTensor]:
        """All tensors; ``start`` counts from the end of the head."""
        found: dict[str, GgufTensor] = {}
        for _ in range(count):
            name = self._text(_MOST_NAME)
            if name in found:
                raise self._wrong(f"has the tensor {name!r:.80} twice")
            found[name] = self._tensor(name)
        return found

    def _tensor(self, name: str) -> GgufTensor:
        rank = self._number("<I")
        if not 1 <= rank <= _MOST_RANK:
            raise self._wrong(f"tensor {name!r:.80} has {rank} dimensions; 1 to {_MOST_RANK} are possible")
        shape = tuple(self._number("<Q") for _ in range(rank))[::-1]
        number, start = self._number("<I"), self._number("<Q")
        kind = _KINDS.get(number)
        if kind is None:
            known = ", ".join(sorted(one.name for one in _KINDS.values()))
            raise UnsupportedError(
                f"{self._source}: tensor {name!r:.80} has the type {_UNREAD.get(number, number)}, which is not read; "
                f"read are {known}: quantize the model to one of them"
            )
        if not all(shape) or shape[-1] % kind.weights:
            raise self._wrong(f"tensor {name!r:.80} of {kind.name} cannot have the shape {list(shape)}")
        return GgufTensor(kind, shape, start, math.prod(shape) // kind.weights * kind.size)

    def _take(self, size: int) -> bytes:
        found = self._file.read(size) if size <= self._end - self.place else b""
        if len(found) < size:
            much = self.place + size > self._end == _MOST_HEAD
            reason = f"more than {_MOST_HEAD} bytes before its tensors" if much else "cut short"
            raise self._wrong(f"is not a whole GGUF file: {reason}")
        self.place += size
        return found

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _text(self, most: int = _MOST_HEAD) -> str:
        size = self._number("<Q")
        if size > most:
            raise self._wrong(f"has a name or text of {size} bytes; at most {most} are read")
        try:
            return str(self._take(size), "utf-8")
        except UnicodeDecodeError:
            raise self._wrong(f"has a text at byte {self.place - size} that is not UTF-8") from None

    def _value(self, key: str, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            return self._array(key)
        if kind == _TRUTH:
            value = self._number("<B")
            if value > 1:
                raise self._wrong(f"the key {key!r:.80} must be true or false, not {value}")
            return bool(value)
        if kind not in _FORMATS:
            raise self._wrong(f"the key {key!r:.80} has the type {kind}, which GGUF has not")
        return self._number(_FORMATS[kind])

    def _array(self, key: str) -> Any:
        kind, count = self._number("<I"), self._number("<Q")
        if kind == _TEXT:
            self._texts += count
            if self._texts > _MOST_TEXTS:
                raise self._wrong(f"the key {key!r:.80} has {count} texts; at most {_MOST_TEXTS} are read")
            return [self._text() for _ in range(count)]
        form = np.dtype(_FORMATS.get(kind, "<B"))
        if kind == _ARRAY or (kind != _TRUTH and kind not in _FORMATS):
            raise self._wrong(f"the key {key!r:.80} is an array of the type {kind}; arrays have numbers or texts")
        return np.frombuffer(self._take(count * form.itemsize), form)
