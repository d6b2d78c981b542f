"""Flat lists of numbers in JSON, of which type and shape are known before they are read.

A list is read by orjson, as all JSON is, or, where it is long and its numbers are floating-point ones, by simdjson if
that is installed: it makes no Python object of each number, and takes half the time. What is in any way unusual neither
of them reads. A request with 512 numbers costs the server 12 % more when NumPy converts what orjson reads
(benchmarks/fast_paths.py); without simdjson 5 % more, with 4,096 numbers twice as long for the list.
"""

import struct
from collections.abc import Sequence
from math import prod
from typing import Any, Final, Protocol

import numpy as np
import orjson

from repoagent.serving.requests.tensor import Array
from repoagent_server.codec.datatypes import JsonKind, TypeInfo

__all__ = ["FloatParser", "NumberList", "float_parser"]

_LONG: Final = range(1 << 8, 1 << 18)
"""Bytes of text with which simdjson is quicker; its parser keeps a multiple of them."""
_DOUBLE: Final = np.dtype(np.float64)
_REFUSALS: Final = (ValueError, TypeError, RuntimeError)
"""What simdjson raises: the text is no JSON, there is something else than a number, a number is too large for it."""


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
