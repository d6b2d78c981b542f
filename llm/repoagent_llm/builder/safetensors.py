"""Reading and writing the safetensors format: a length, a JSON head, raw tensors."""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from repoagent.errors import InvalidArgumentError
from repoagent.nested_text import read_json

_DTYPES: Final = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U8": "<u1"}
_MOST_HEAD: Final = 1 << 27
_HEAD_BYTES: Final = 256
"""Of one tensor in the head, at most."""
_STORED: Final = {
    np.dtype("<f8"): "F64",
    np.dtype("<f4"): "F32",
    np.dtype("<f2"): "F16",
    np.dtype("<u2"): "BF16",
    np.dtype("<i8"): "I64",
    np.dtype("<i1"): "I8",
    np.dtype("<u1"): "U8",
}


class Checkpoint:
    """All tensors of a folder's safetensors files, mapped, read when asked for."""

    def __init__(self, folder: Path) -> None:
        """Read the heads of ``folder``'s files: as its index says, else of every ``*.safetensors`` file."""
        self._entries: dict[str, tuple[Path, int, Mapping[str, Any]]] = {}
        for file in _indexed(folder) or sorted(folder.glob("*.safetensors")):
            self._read_head(file)
        if not self._entries:
            raise InvalidArgumentError(f"{folder}: no *.safetensors file; convert the checkpoint to safetensors first")

    def _read_head(self, file: Path) -> None:
        with file.open("rb") as stream:
            prefix = stream.read(8)
            size = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
            if not 0 < size <= min(file.stat().st_size - 8, _MOST_HEAD):
                raise InvalidArgumentError(f"{file}: not a safetensors file, or cut short")
            text = stream.read(size)
        try:
            head = read_json(text)
            room = file.stat().st_size - 8 - size
            for name, entry in head.items():
                if name != "__metadata__":
                    _check_entry(file, name, entry, room)
                    if name in self._entries:
                        raise InvalidArgumentError(f"{file}: the tensor {name!r} lies in {self._entries[name][0]} too")
                    self._entries[name] = (file, 8 + size, entry)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"{file}: not a safetensors file: its head cannot be read: {error}") from error

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def names(self) -> list[str]:
        """The names of all tensors."""
        return list(self._entries)

    def blocks(self, name: str) -> None:
        """See CheckpointTensors."""

    def read(self, name: str, shape: tuple[int, ...] | None = None) -> npt.NDArray[np.float32]:
        """A tensor as float32.

        Raises ``InvalidArgumentError`` when it is missing, of an unknown type or, where that is said, of another shape.
        """
        if name not in self._entries:
            raise InvalidArgumentError(f"the checkpoint has no tensor {name!r}")
        file, base, entry = self._entries[name]
        if entry["dtype"] not in _DTYPES:
            raise InvalidArgumentError(f"{file}: tensor {name!r} has the type {entry['dtype']}, which is not supported")
        if shape is not None and tuple(entry["shape"]) != shape:
            raise InvalidArgumentError(
                f"{file}: tensor {name!r} has the shape {entry['shape']}; config.json makes it {list(shape)}"
            )
        start, stop = entry["data_offsets"]
        dtype = np.dtype(_DTYPES[entry["dtype"]])
        if stop - start != math.prod(entry["shape"]) * dtype.itemsize:
            raise InvalidArgumentError(f"{file}: tensor {name!r} has {stop - start} bytes, not those of its shape")
        raw = np.memmap(file, dtype, "r", base + start, ((stop - start) // dtype.itemsize,))
        if entry["dtype"] == "BF16":
            return (raw.astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])
        return np.asarray(raw, np.float32).reshape(entry["shape"])


def _check_entry(file: Path, name: str, entry: Mapping[str, Any], room: int) -> None:
    """Raise for an entry of the head that is no tensor within the file."""
    shape, offsets = entry["shape"], entry["data_offsets"]
    if (
        not isinstance(entry["dtype"], str)
        or not (isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2)
        or any(type(number) is not int or number < 0 for number in (*shape, *offsets))
        or offsets[0] > offsets[1]
    ):
        raise InvalidArgumentError(f"{file}: the tensor {name!r:.80} has no possible dtype, shape and data_offsets")
    if offsets[1] > room:
        raise InvalidArgumentError(f"{file}: cut short, the tensor {name!r:.80} lies behind its end")


def _indexed(folder: Path) -> list[Path]:
    """The files that an index names, all of which must be there; none without an index."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return []
    try:
        names = sorted(set(read_json(index.read_text(encoding="utf-8"))["weight_map"].values()))
        files = [folder / Path(name).name for name in names]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{index}: not an index of safetensors files: {error}") from error
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise InvalidArgumentError(f"{missing}: File does not exist, but {index.name} names it")
    return files


def write_safetensors(path: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write tensors in the order given."""
    head: dict[str, Any] = {}
    offset = 0
    for name, tensor in tensors.items():
        head[name] = {
            "dtype": _STORED[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    encoded = json.dumps(head).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(encoded)) + encoded)
        for tensor in tensors.values():
            stream.write(np.ascontiguousarray(tensor).data)


class TensorFile:
    """Writes a safetensors file one tensor after the other, so that none but the last need be in memory.

    ``tensors``: at most so many will come. An array of uint16 is one of bfloat16.
    """

    def __init__(self, path: Path, tensors: int) -> None:
        self._room = 1024 + tensors * _HEAD_BYTES
        self._head: dict[str, Any] = {}
        self._stream = path.open("wb")
        self._stream.seek(8 + self._room)

    def write(self, name: str, tensor: npt.NDArray[Any]) -> None:
        """Append a tensor; what follows begins at a multiple of 64 bytes."""
        start = self._stream.tell() - 8 - self._room
        self._stream.write(np.ascontiguousarray(tensor).data)
        entry = {"dtype": _STORED[tensor.dtype], "shape": list(tensor.shape)}
        self._head[name] = {**entry, "data_offsets": [start, start + tensor.nbytes]}
        self._stream.write(bytes(-self._stream.tell() % 64))

    def __enter__(self) -> "TensorFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def close(self) -> None:
        """Write the head; it stands before the tensors."""
        encoded = json.dumps(self._head).encode()
        assert len(encoded) <= self._room, "more tensors came than were announced"
        self._stream.seek(0)
        self._stream.write(struct.pack("<Q", self._room) + encoded.ljust(self._room))
        self._stream.close()
