"""Messages before they are parsed: how many fields there are.

The parser holds the interpreter until it is done, and a field of two bytes becomes an object. So the fields of a large
message are counted first; the bytes of tensors are stepped over.
"""

from collections.abc import Iterator
from typing import Final

from repoagent.errors import InvalidArgumentError
from repoagent.limits import Limits
from repoagent_server.codec.binary import Buffer
from repoagent_server.grpc import messages_pb2 as pb

LONG_MESSAGE: Final = 1 << 18
"""Messages from this size, in bytes, are looked at before they are parsed."""

_FEW: Final = 1 << 8
_SHORT: Final = 1 << 13
"""Fields, and bytes of them, that are counted in a few milliseconds."""
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_SIZES: Final = {_FIXED_64: 8, _FIXED_32: 4}
_INPUTS: Final = pb.ModelInferRequest.INPUTS_FIELD_NUMBER
_RAW: Final = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_CONTENTS: Final = pb.ModelInferRequest.InferInputTensor.CONTENTS_FIELD_NUMBER
_PER_TENSOR: Final = 3
"""An input, an output, and raw contents."""


def check_fields(data: Buffer, most: int) -> None:
    """Refuse a message of more than ``most`` fields, as far as it can be read; the rest is up to the parser.

    Raises:
        InvalidArgumentError: it has more.
    """
    for count, _ in enumerate(_fields(data, 0, len(data)), 1):
        if count > most:
            raise InvalidArgumentError(f"the message has more than {most} fields ({Limits.flag('request_parameters')})")


def is_plain(data: Buffer) -> bool:
    """Whether nearly all of an inference request is raw tensors: no more is to be counted than an event loop may."""
    frame = 0
    for count, (field, start, end) in enumerate(_fields(data, 0, len(data)), 1):
        frame += 0 if field == _RAW else end - start
        if count > _FEW or frame > _SHORT:
            return False
    return True


def check_infer(data: Buffer, limits: Limits) -> int:
    """Refuse an inference request of too many fields; else how many of its bytes are not raw tensors.

    Raises:
        InvalidArgumentError: it has more inputs, outputs and parameters, or typed elements, than allowed.
    """
    most = _PER_TENSOR * limits.request_tensors + limits.request_parameters
    elements = frame = 0
    for count, (field, start, end) in enumerate(_fields(data, 0, len(data)), 1):
        if count > most:
            raise InvalidArgumentError(
                f"the request has more than {most} inputs, outputs and parameters "
                f"({limits.flag('request_tensors')}, {limits.flag('request_parameters')})"
            )
        if field != _RAW:
            frame += end - start
        if field == _INPUTS:
            elements = _count_input(data, start, end, elements, limits)
    return frame


def split_raw(data: Buffer) -> tuple[Buffer, list[memoryview] | None]:
    """An inference request without its raw tensors, and these as views of ``data``; None if it has none."""
    view = memoryview(data)
    rest: list[memoryview] = []
    raw: list[memoryview] = []
    begin = 0
    for field, start, end in _fields(data, 0, len(data)):
        if field == _RAW and data[begin] & 7 == _BYTES:
            raw.append(view[start:end])
        else:
            rest.append(view[begin:end])
        begin = end
    if not raw:
        return data, None
    return b"".join((*rest, view[begin:])), raw


def _count_input(data: Buffer, start: int, end: int, elements: int, limits: Limits) -> int:
    for field, inner, inner_end in _fields(data, start, end):
        elements += 1
        for _ in _fields(data, inner, inner_end) if field == _CONTENTS else ():
            elements += 1
            if elements > limits.typed_elements:
                break
        if elements > limits.typed_elements:
            raise InvalidArgumentError(
                f"the request has more than {limits.typed_elements} elements in typed contents that are not packed; "
                f"use raw_input_contents ({limits.flag('typed_elements')})"
            )
    return elements


def _fields(data: Buffer, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The number of each field, and where its contents begin and end; up to the first that cannot be read."""
    while position < end:
        tag, position = _varint(data, position, end)
        kind = tag & 7
        start = position
        if kind == _BYTES:
            length, start = _varint(data, position, end)
            position = start + length
        elif kind == _VARINT:
            _, position = _varint(data, position, end)
        elif kind in _SIZES:
            position += _SIZES[kind]
        else:
            return
        if position > end:
            return
        yield tag >> 3, start, position


def _varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    return 0, end + 1
