"""Whether a model that is split into several safetensors files is complete.

This is about completeness, not integrity: every shard that the index names is there and as long as its own header
states, and holds the tensors that the index looks for in it. Only headers are read.
"""

import os
import struct
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, Final

from repoagent.api import InvalidArgumentError, read_json_object
from repoagent_checksum.file_names import MOST_VALUES, open_inside, plain_name, read_inside, show

INDEX_SUFFIX: Final = ".safetensors.index.json"
MAX_HEADER_BYTES: Final = 100_000_000
"""The limit that the format itself sets."""


def check_index(root: Path, index: str) -> list[str]:
    """What is wrong with the shards of ``index`` (a path relative to ``root``), one sentence each.

    Raises:
        InvalidArgumentError: the index itself cannot be read.
        UnsafePathError: a shard, or the index, is a link or outside of ``root``.
    """
    wanted = _tensors_by_shard(root, index)
    directory = index.rpartition("/")[0]
    return [
        fault
        for shard, tensors in sorted(wanted.items())
        for fault in _faults(root, f"{directory}/{shard}" if directory else shard, tensors)
    ]


def _tensors_by_shard(root: Path, index: str) -> dict[str, set[str]]:
    try:
        weights = read_json_object(read_inside(root, index, "safetensors index"), most_values=MOST_VALUES)["weight_map"]
        shards: dict[str, set[str]] = {}
        for tensor, shard in _checked(weights).items():
            shards.setdefault(plain_name(str(shard), show(index)), set()).add(tensor)
    except (ValueError, KeyError) as error:
        raise InvalidArgumentError(f"{show(index)}: not a safetensors index: {error!r}") from error
    if not shards:
        raise InvalidArgumentError(f"{show(index)}: the index names no shard")
    return shards


def _checked(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {type(value).__name__}")
    return value


def _faults(root: Path, shard: str, tensors: set[str]) -> Iterator[str]:
    try:
        with open_inside(root, shard) as file:
            header, end = _read_header(file)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        yield f"shard {show(shard)}: {error.strerror}"
    except (ValueError, KeyError, TypeError, struct.error) as error:
        yield f"shard {show(shard)} is not a safetensors file: {error}"
    else:
        if size != end:
            yield f"shard {show(shard)} has {size} bytes, its header speaks of {end}"
        if missing := sorted(tensors - header):
            yield f"shard {show(shard)} lacks {len(missing)} tensors, the first is {show(missing[0])!r}"


def _read_header(file: FileIO) -> tuple[set[str], int]:
    """The names of the tensors, and where the last one ends in the file."""
    (length,) = struct.unpack("<Q", file.read(8))
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {length} bytes")
    tensors = {
        name: value
        for name, value in read_json_object(file.read(length), most_values=MOST_VALUES).items()
        if name != "__metadata__"
    }
    ends = [int(value["data_offsets"][1]) for value in tensors.values()]
    return set(tensors), 8 + length + max(ends, default=0)
