"""Requests that differ from an earlier one in nothing but their id and the values of their tensors.

Clients ask for the same again and again. Such a request is compared with the earlier one instead of being parsed and
checked, and its tensors are views of the message as it came. Without this a small request costs the server 13 to 22 %
more at eight connections (benchmarks/fast_paths.py, 22 November 2026).
"""

from dataclasses import dataclass, replace
from typing import Final

from google.protobuf.message import DecodeError

from repoagent.serving.requests.request import Asked
from repoagent.serving.requests.tensor import Tensor, array_at
from repoagent_server.codec.binary import BY_TYPE, TypeInfo
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.request import Decoded
from repoagent_server.grpc.response import frame_of

_RAW: Final = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_NAME_TAG, _VERSION_TAG, _ID_TAG = b"\x0a", b"\x12", b"\x1a"
_ONE_BYTE: Final = 0x7F
"""The largest length of a field that takes one byte."""
_MAX_HEAD: Final = 1 << 12
_MAX_KEYS: Final = 256
_MAX_ALIKE: Final = 8
"""How long what is remembered may be, of how many kinds it may be, and how many may be of one kind."""

_Key = tuple[bytes, int]
"""The fields before the id, and how many bytes follow it."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the bytes of an input lie, counted from the end of the id, and the tag and length before them."""

    name: str
    info: TypeInfo
    shape: tuple[int, ...]
    offset: int
    frame: bytes


@dataclass(frozen=True, slots=True)
class _Known:
    """A request without its id and its tensors."""

    head: bytes
    """What follows the id, up to the tensors."""
    places: tuple[_Place, ...]
    decoded: Decoded

    def read(self, data: bytes, request_id: str, start: int) -> Decoded | None:
        """The request that ``data`` is, whose head is this one, if its tensors have the lengths that they must have."""
        inputs = {}
        for place in self.places:
            offset, info = start + place.offset, place.info
            if not data.startswith(place.frame, offset - len(place.frame)):
                return None
            inputs[place.name] = Tensor(info.data_type, array_at(data, offset, info.dtype, place.shape))
        known = self.decoded.asked
        asked = Asked(
            known.model_name,
            inputs,
            known.model_version,
            known.requested_outputs,
            request_id,
            known.parameters,
            known.correlation_id,
            known.sequence_start,
            known.sequence_end,
            known.priority,
            known.timeout_us,
        )
        return Decoded(asked, self.decoded.requested, self.decoded.empty_final)


class KnownRequests:
    """Belongs to one thread."""

    def __init__(self) -> None:
        self._known: dict[_Key, list[_Known]] = {}

    def read(self, data: bytes) -> Decoded | None:
        """The request that ``data`` is, if one like it was remembered."""
        begin, end = _place_of_id(data)
        for known in self._known.get((data[:begin], len(data) - end), ()):
            if data.startswith(known.head, end):
                try:
                    request_id = data[begin + 2 : end].decode()
                except UnicodeDecodeError:
                    return None
                return known.read(data, request_id, end)
        return None

    def remember(self, data: bytes, message: pb.ModelInferRequest, decoded: Decoded) -> None:
        """Remember ``decoded``, which was read from ``message``, which was parsed from ``data``.

        Parameters of the request are compared with the rest. Those of a tensor name shared memory or classes: such a
        request is not remembered.
        """
        if any(entry.parameters for entry in message.inputs) or any(entry.parameters for entry in message.outputs):
            return
        if not message.inputs or len(message.raw_input_contents) != len(message.inputs):
            return
        begin, end = _place_of_id(data)
        places = _places(data, end, message, decoded.asked)
        if not places:
            return
        head = data[end : end + places[0].offset - len(places[0].frame)]
        if begin + len(head) > _MAX_HEAD or not _is_head(data[:begin] + head):
            return
        if len(self._known) >= _MAX_KEYS:
            self._known.clear()
        alike = self._known.setdefault((data[:begin], len(data) - end), [])
        if len(alike) >= _MAX_ALIKE:
            alike.clear()
        without_tensors = replace(decoded.asked, inputs={}, id="")
        alike.append(_Known(head, places, Decoded(without_tensors, decoded.requested, decoded.empty_final)))


def _place_of_id(data: bytes) -> tuple[int, int]:
    """Where the field of the id begins and ends; the same place twice where it is not after name and version."""
    begin = _after(data, _VERSION_TAG, _after(data, _NAME_TAG, 0))
    return begin, _after(data, _ID_TAG, begin)


def _after(data: bytes, tag: bytes, position: int) -> int:
    """Where a field that begins at ``position`` ends; ``position``, if it has another tag or is long."""
    if not data.startswith(tag, position) or len(data) < position + 2 or data[position + 1] > _ONE_BYTE:
        return position
    return position + 2 + data[position + 1]


def _places(data: bytes, start: int, message: pb.ModelInferRequest, asked: Asked) -> tuple[_Place, ...]:
    """Where the inputs' bytes are if they are the end of ``data``; else nothing."""
    places: list[_Place] = []
    end = len(data)
    for entry, raw in zip(reversed(message.inputs), reversed(message.raw_input_contents), strict=True):
        tensor = asked.inputs[entry.name]
        info = BY_TYPE[tensor.data_type]
        frame = frame_of(_RAW, len(raw))
        offset = end - len(raw)
        if not info.size or not raw or not data.startswith(frame, max(0, offset - len(frame))):
            return ()
        places.append(_Place(entry.name, info, tuple(tensor.shape), offset - start, frame))
        end = offset - len(frame)
    return tuple(reversed(places))


def _is_head(data: bytes) -> bool:
    """Whether ``data`` ends where a field ends, and has neither an id nor tensors: what follows is parsed by itself."""
    try:
        message = pb.ModelInferRequest.FromString(data)
    except DecodeError:
        return False
    return not message.raw_input_contents and not message.id
