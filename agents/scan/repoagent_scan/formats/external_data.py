"""Files with the weights of an ONNX model: nothing but what the model's tensors name may lie in them."""

from collections.abc import Iterable, Mapping
from typing import Final

from repoagent_scan.formats.content import Buffer
from repoagent_scan.formats.errors import MalformedError

__all__ = ["Range", "check_covered", "external_range"]

_PADDING: Final = 1 << 16
"""Zeros up to the next tensor, so that it begins at a page: at most 64 KiB of them."""
_BITS: Final = {
    **dict.fromkeys((25, 26), 2),
    **dict.fromkeys((21, 22, 23), 4),
    **dict.fromkeys((2, 3, 9, 17, 18, 19, 20, 24), 8),
    **dict.fromkeys((4, 5, 10, 16), 16),
    **dict.fromkeys((1, 6, 12), 32),
    **dict.fromkeys((7, 11, 13, 14), 64),
    15: 128,
}
"""Of one element, by the number of its type in ``onnx.proto``."""


Range = tuple[int, int]
"""The first byte of a tensor, and the one after its last."""


def external_range(entries: Mapping[str, str], element: int, dimensions: Iterable[int]) -> Range:
    """Where the tensor with the ``entries`` of ``external_data`` lies.

    Raises:
        MalformedError: offset or length are no numbers, or the length is not given and the type has no size.
    """
    first = _number(entries.get("offset", "0"))
    length = _number(entries.get("length", "0"))
    if not length:
        count = 1
        for dimension in dimensions:
            count *= dimension
        if element not in _BITS:
            raise MalformedError(f"external data of the type {element}, which has no size")
        length = (count * _BITS[element] + 7) // 8
    return first, first + length


def check_covered(data: Buffer, ranges: Iterable[Range]) -> None:
    """Check that ``ranges`` cover all of ``data``, but for zeros between them.

    Raises:
        MalformedError: bytes belong to no tensor, or a tensor is longer than the file.
    """
    position = 0
    for first, last in sorted(ranges):
        if last > len(data):
            raise MalformedError(f"external data of {len(data)} bytes, of which an ONNX model names {last}")
        _check_padding(data, position, first)
        position = max(position, last)
    _check_padding(data, position, len(data))


def _check_padding(data: Buffer, first: int, last: int) -> None:
    if last - first >= _PADDING or data[first : max(first, last)].strip(b"\0"):
        raise MalformedError(f"bytes {first} to {last} of external data belong to no tensor of an ONNX model")


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 19:
        raise MalformedError(f"external data at {text[:40]!r}, expected a number")
    return int(text)
