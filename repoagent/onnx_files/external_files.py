"""Just enough of the ONNX format to walk a file, and to know which other files it needs.

The file is walked tag by tag, without decoding a tensor, so a model of any size costs little time and no memory.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, overload

from repoagent.errors import InvalidArgumentError

# Message -> field number -> message of that field; only what leads to a tensor (onnx.proto).
_FIELDS: Final[dict[str, dict[int, str]]] = {
    "Model": {7: "Graph", 25: "Function"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Function": {7: "Node", 11: "Attribute"},
    "Node": {5: "Attribute"},
    "Attribute": {5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "SparseTensor", 23: "SparseTensor"},
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
    "Tensor": {13: "External"},
}
_GRAPH: Final = 7
_BYTES: Final = 2
_DEEPEST: Final = 1000

Buffer = bytes | mmap.mmap
Span = tuple[int, int]


def external_files(path: Path, name: str) -> frozenset[str]:
    """The locations of external data in the ONNX model ``path``, as they are written there. Raises
    ``InvalidArgumentError``, with ``name`` for the file, if it is not such a model, or cut off."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise InvalidArgumentError(f"{name} is not an ONNX model: the file is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _locations(data)
            except (ValueError, IndexError) as error:
                raise InvalidArgumentError(f"{name} is not an ONNX model, or it is cut off: {error}") from error


def _locations(data: Buffer) -> frozenset[str]:
    if not any(number == _GRAPH for number, _ in fields(data, (0, len(data)))):
        raise ValueError("no graph in it")
    entries = (_entry(data, span) for message, span in parts(data) if message == "External")
    return frozenset(value.decode() for key, value in entries if key == b"location")


def parts(data: Buffer) -> Iterator[tuple[str, Span]]:
    """Kind and place of each graph, function, node, attribute and tensor, and of what names a file.

    One at a time: a file of a megabyte can have half a million nodes. Raises ``ValueError`` or ``IndexError`` if it is
    not a message of protobuf, cut off, or nested too deeply.
    """
    within = [("Model", fields(data, (0, len(data))))]
    while within:
        message, inner = within[-1]
        found = next(inner, None)
        if found is None:
            within.pop()
        elif kind := _FIELDS[message].get(found[0]):
            span = found[1]
            yield kind, span
            if len(within) == _DEEPEST:
                raise ValueError(f"more than {_DEEPEST} levels")
            if kind in _FIELDS:
                within.append((kind, fields(data, span)))


def _entry(data: Buffer, span: Span) -> tuple[bytes, bytes]:
    values = {number: data[start:end] for number, (start, end) in fields(data, span)}
    return values.get(1, b""), values.get(2, b"")


@overload
def fields(data: Buffer, span: Span) -> Iterator[tuple[int, Span]]: ...
@overload
def fields(data: Buffer, span: Span, *, numbers: Literal[True]) -> Iterator[tuple[int, Span | int]]: ...
def fields(data: Buffer, span: Span, *, numbers: bool = False) -> Iterator[tuple[int, Any]]:
    """Number and place of every field of ``span`` that has a length; with ``numbers`` also the values of the others.
    Raises ``ValueError`` or ``IndexError`` if it is not a message of protobuf, or cut off."""
    position, end = span
    while position < end:
        tag, position = varint(data, position)
        if tag >> 32:  # others take the lower half, and see another field than this
            raise ValueError(f"a tag of more than 32 bits before byte {position}")
        start = position
        value = 0
        match tag & 7:
            case 0:
                value, position = varint(data, position)
            case 1:
                position += 8
            case 2:
                length, start = varint(data, position)
                position = start + length
            case 5:
                position += 4
            case kind:
                raise ValueError(f"wire type {kind} at byte {start}")
        if position > end:
            raise ValueError(f"a field at byte {start} ends {position - end} bytes after its message")
        if tag & 7 == _BYTES:
            yield tag >> 3, (start, position)
        elif numbers:
            yield tag >> 3, value


def varint(data: Buffer, position: int) -> tuple[int, int]:
    """The number at ``position``, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError(f"a number without end at byte {position}")
