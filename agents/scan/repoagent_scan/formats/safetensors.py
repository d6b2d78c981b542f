"""Safetensors: a header in JSON, then nothing but the tensors that it lists.

A file that has bytes which no tensor covers can be two files at once, such as weights and an archive.
"""

import struct
from typing import Any, Final

from repoagent.api import read_json
from repoagent_scan.formats.content import Buffer
from repoagent_scan.formats.format import MalformedError

_LARGEST_HEADER: Final = 100_000_000
"""The limit that the format itself sets."""
_MOST_VALUES: Final = 1_000_000


def is_safetensors(data: Buffer) -> bool:
    """Whether ``data`` begins as a safetensors file does."""
    return len(data) >= 10 and data[8:9] == b"{" and _header_size(data) <= min(len(data) - 8, _LARGEST_HEADER)


def check_safetensors(data: Buffer) -> None:
    """Check that the tensors cover the file from the header to its end, without a gap or an overlap.

    Raises:
        MalformedError: they do not, or the header cannot be read.
    """
    start = 8 + _header_size(data)
    spans = sorted(_spans(data[8:start]))
    position = 0
    for first, last in spans:
        if first != position or last < first:
            raise MalformedError(f"the tensors leave a gap or overlap at byte {start + position}")
        position = last
    if start + position != len(data):
        raise MalformedError(f"{len(data) - start - position} bytes follow the last tensor")


def _header_size(data: Buffer) -> int:
    size: int = struct.unpack("<Q", data[:8])[0]
    return size


def _spans(header: bytes) -> list[tuple[int, int]]:
    try:
        tensors: dict[str, Any] = read_json(header, most_values=_MOST_VALUES)
        found = [tensor["data_offsets"] for name, tensor in tensors.items() if name != "__metadata__"]
        return [(int(first), int(last)) for first, last in found]
    except (ArithmeticError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise MalformedError(f"the header is not that of a safetensors file: {error}") from None
