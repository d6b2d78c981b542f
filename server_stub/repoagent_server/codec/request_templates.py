"""Requests that differ from an earlier one in nothing but the values of their tensors.

Clients ask for the same again and again. Of such a request only the values are read; all that is around them is
compared with the earlier one instead of being parsed and checked. Without this a small request costs the server 8 to
18 % more (benchmarks/fast_paths.py, 22 November 2026, as all figures beside fast paths).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final, Protocol

import numpy as np
import orjson

from repoagent.serving.requests.request import Asked
from repoagent.serving.requests.tensor import Array, Tensor, array_at
from repoagent_server.codec.binary import BY_TYPE, Buffer, JsonKind, TypeInfo
from repoagent_server.codec.infer_request import OutputEncoding
from repoagent_server.handlers.requested_outputs import RequestedOutputs

_LONG: Final = range(1 << 8, 1 << 18)
"""Bytes of text with which simdjson is quicker; its parser keeps a multiple of them."""
_DOUBLE: Final = np.dtype(np.float64)
_REFUSALS: Final = (ValueError, TypeError, RuntimeError)
"""What simdjson raises: the text is not valid JSON, a value is not a number, or a number is too large for it."""


class FloatParser(Protocol):
    """A parser of simdjson. Belongs to one thread; what it has parsed must be gone before it parses again."""

    def parse(self, data: bytes) -> Any: ...


def float_parser() -> FloatParser | None:
    """A new one; None if pysimdjson (the extra ``simdjson``) is not installed."""
    try:
        from simdjson import Parser
    except ImportError:
        return None
    parser: FloatParser = Parser()
    return parser


class NumberList:
    """A list of a certain type and shape, with at least one number. The type must be one that ``struct`` knows."""

    __slots__ = ("_count", "_dtype", "_pack", "_parser", "_shape", "data_type")

    def __init__(self, info: TypeInfo, shape: Sequence[int], parser: FloatParser | None = None) -> None:
        self.data_type = info.data_type
        self._dtype = info.dtype
        self._shape = shape
        self._count = prod(shape)
        self._pack = struct.Struct(f"{self._count}{info.code}").pack
        self._parser = parser if info.json is JsonKind.FLOAT else None

    def read(self, text: bytes) -> Array | None:
        """The array that ``text`` is; None if there is anything about it that has to be looked into."""
        if b"r" in text or b"l" in text:  # true, false, null: in no number
            return None
        if self._parser is not None and len(text) in _LONG:
            return self._read_floats(self._parser, text)
        try:
            array: Array = np.ndarray(self._shape, self._dtype, self._pack(*orjson.loads(text)))
        except (orjson.JSONDecodeError, struct.error, OverflowError):
            return None
        return array

    def _read_floats(self, parser: FloatParser, text: bytes) -> Array | None:
        try:
            doubles = parser.parse(text).as_buffer(of_type="d")
        except _REFUSALS:
            return None
        if doubles.size != self._count * _DOUBLE.itemsize:
            return None
        array: Array = np.ndarray(self._shape, _DOUBLE, doubles)
        if b"e" in text or b"E" in text:
            with np.errstate(over="ignore"):  # beyond the largest FP32: infinite, as in Triton
                return array.astype(self._dtype)
        return array.astype(self._dtype, copy=False)


_MAX_HEAD: Final = 1 << 12
_MAX_KNOWN: Final = 256
"""How many bytes there may be around the values, and how many requests are remembered."""
_MAX_COUNT: Final = 1 << 16
"""How many numbers a list may have; longer ones are better packed by NumPy."""

_DATA: Final = b'"data":'
_BRACKET_WITHIN: Final = len(_DATA) + 2
_NOTHING_REQUESTED: Final = RequestedOutputs()


@dataclass(frozen=True, slots=True)
class _Binary:
    """A request whose tensors lie behind the JSON, ``size`` bytes together."""

    inputs: tuple[tuple[str, TypeInfo, tuple[int, ...], int], ...]
    """Name, type, shape, number of bytes."""
    size: int
    outputs: tuple[str, ...]
    form: OutputEncoding


@dataclass(frozen=True, slots=True)
class _Json:
    """A request whose values are in the JSON."""

    inputs: tuple[tuple[str, NumberList], ...]
    outputs: tuple[str, ...]
    form: OutputEncoding


class RequestTemplates:
    """Belongs to one thread. Which model a request is for does not matter: that is not in its body."""

    def __init__(self) -> None:
        self._binary: dict[bytes, _Binary] = {}
        self._json: dict[tuple[bytes, ...], _Json] = {}
        self._parser = float_parser()

    def read(self, body: Buffer, length: int, model: str, version: str) -> tuple[Asked, OutputEncoding] | None:
        """What ``read_infer`` makes of the request, if one like it was remembered and its values are as usual.

        ``length``: how many bytes of ``body`` are JSON, more than none.
        """
        if length < len(body):
            return self._read_binary(body, length, model, version)
        return self._read_json(body, model, version) if type(body) is bytes else None

    def _read_binary(self, body: Buffer, length: int, model: str, version: str) -> tuple[Asked, OutputEncoding] | None:
        known = self._binary.get(bytes(body[:length]))
        if known is None or length + known.size != len(body):
            return None
        inputs = {}
        offset = length
        for name, info, shape, size in known.inputs:
            inputs[name] = Tensor(info.data_type, array_at(body, offset, info.dtype, shape))
            offset += size
        return Asked(model, inputs, version, known.outputs), known.form

    def _read_json(self, body: bytes, model: str, version: str) -> tuple[Asked, OutputEncoding] | None:
        pieces, lists = _cut(body)
        known = self._json.get(pieces)
        if known is None:
            return None
        inputs = {}
        for (name, numbers), text in zip(known.inputs, lists, strict=True):
            array = numbers.read(text)
            if array is None:
                return None
            inputs[name] = Tensor(numbers.data_type, array)
        return Asked(model, inputs, version, known.outputs), known.form

    def remember(self, body: Buffer, length: int, asked: Asked, form: OutputEncoding) -> None:
        """Remember ``asked``, which ``read_infer`` made of ``body`` with ``form``.

        Only the plainest are: what has an id or parameters is rarely the same twice.
        """
        if asked.id or length > len(body) or not _is_plain(asked) or form.requested != _NOTHING_REQUESTED:
            return
        infos = [BY_TYPE[tensor.data_type] for tensor in asked.inputs.values()]
        if length < len(body):
            self._remember_binary(body, length, asked, form, infos)
        elif type(body) is bytes:
            self._remember_json(body, asked, form, infos)

    def _remember_binary(
        self, body: Buffer, length: int, asked: Asked, form: OutputEncoding, infos: Sequence[TypeInfo]
    ) -> None:
        inputs = tuple(
            (name, info, tuple(tensor.shape), prod(tensor.shape) * info.size)
            for (name, tensor), info in zip(asked.inputs.items(), infos, strict=True)
        )
        size = len(body) - length
        # If a tensor has its bytes elsewhere, or may have others another time, the sum is another one.
        if length <= _MAX_HEAD and all(info.size for info in infos) and sum(item[3] for item in inputs) == size:
            _make_room(self._binary)
            self._binary[bytes(body[:length])] = _Binary(inputs, size, asked.requested_outputs, form)

    def _remember_json(self, body: bytes, asked: Asked, form: OutputEncoding, infos: Sequence[TypeInfo]) -> None:
        sizes = [tensor.array.size for tensor in asked.inputs.values()]
        if not all(info.code for info in infos) or not all(0 < size <= _MAX_COUNT for size in sizes):
            return
        pieces, lists = _cut(body)
        if not lists or len(lists) != len(infos) or b"\\" in body or not _are_inputs(pieces):
            return
        inputs = tuple(
            (name, NumberList(info, tuple(tensor.shape), self._parser))
            for (name, tensor), info in zip(asked.inputs.items(), infos, strict=True)
        )
        _make_room(self._json)
        self._json[pieces] = _Json(inputs, asked.requested_outputs, form)


def _make_room(known: dict[Any, Any]) -> None:
    if len(known) >= _MAX_KNOWN:
        known.clear()


def _is_plain(asked: Asked) -> bool:
    """Whether ``asked`` has nothing but a model, inputs, and the names of outputs."""
    return replace(asked, model_name="", inputs={}, model_version="", requested_outputs=()) == _PLAIN


_PLAIN: Final = Asked("", {})


def _cut(body: bytes) -> tuple[tuple[bytes, ...], list[bytes]]:
    """What is around the flat lists of ``body`` that may be values, and those lists; nothing if that is not simple.

    Whether these are lists, and the values of inputs, is not looked at.
    """
    pieces: list[bytes] = []
    lists: list[bytes] = []
    position = 0
    found = body.find(_DATA)
    while found >= 0:
        start = body.find(b"[", found, found + _BRACKET_WITHIN)
        end = body.find(b"]", start)
        if start < 0 or end < 0 or body.startswith(b"[[", start):
            return (), []
        pieces.append(body[position:start])
        position = end + 1
        lists.append(body[start:position])
        found = body.find(_DATA, position)
    pieces.append(body[position:])
    if sum(map(len, pieces)) > _MAX_HEAD:
        return (), []
    return tuple(pieces), lists


def _are_inputs(pieces: Sequence[bytes]) -> bool:
    r"""Whether the lists between ``pieces``, in which there is no ``\``, are the values of the inputs, one of each.

    Each is replaced by a text that only an escape can write, so nothing else can be taken for it.
    """
    text = pieces[0] + b"".join(b'"\\u0000%d"%b' % (index, piece) for index, piece in enumerate(pieces[1:]))
    try:
        inputs = orjson.loads(text)["inputs"]
        return [item.get("data") for item in inputs] == [f"\0{index}" for index in range(len(pieces) - 1)]
    except orjson.JSONDecodeError:
        return False
