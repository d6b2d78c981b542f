"""Requests that differ from an earlier one in nothing but the values of their tensors.

Clients ask for the same again and again. Such a request is compared with the earlier one instead of being parsed and
checked, and its tensors are views of the message as it came.
"""

from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from repoagent.serving.requests.request import InferRequest
from repoagent.serving.requests.tensor import Tensor
from repoagent_server.codec.binary import view
from repoagent_server.codec.datatypes import BY_TYPE, TypeInfo
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.response_writer import frame_of

__all__ = ["MessageTemplates"]

_RAW: Final = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_MAX_HEAD: Final = 1 << 12
_MAX_LENGTHS: Final = 256
_MAX_ALIKE: Final = 8
"""How long what is remembered may be, of how many lengths messages may be, and how many may be of one length."""


@dataclass(frozen=True, slots=True)
class _InputSlot:
    """Where the bytes of an input lie in a message, and the tag and length before them."""

    name: str
    info: TypeInfo
    shape: tuple[int, ...]
    offset: int
    frame: bytes


@dataclass(frozen=True, slots=True)
class _Known:
    """A request without its tensors, which are the rest of the message."""

    head: bytes
    model: str
    version: str
    outputs: tuple[str, ...]
    places: tuple[_InputSlot, ...]

    def read(self, data: bytes) -> InferRequest | None:
        """The request that ``data``, which has the head, is, if its tensors have the lengths they must have."""
        inputs = {}
        for place in self.places:
            offset, info = place.offset, place.info
            if not data.startswith(place.frame, offset - len(place.frame)):
                return None
            inputs[place.name] = Tensor(info.data_type, view(info, data, offset, place.shape))
        return InferRequest(self.model, inputs, None, self.version, requested_outputs=self.outputs)


class MessageTemplates:
    """Belongs to one thread."""

    def __init__(self) -> None:
        self._by_length: dict[int, list[_Known]] = {}

    def read(self, data: bytes) -> InferRequest | None:
        """The request that ``data`` is, if one like it was remembered."""
        for known in self._by_length.get(len(data), ()):
            if data.startswith(known.head):
                return known.read(data)
        return None

    def remember(self, data: bytes, message: pb.ModelInferRequest, request: InferRequest) -> None:
        """Remember ``request``, which was read from ``message``, which was parsed from ``data``.

        Only the plainest are: what has an id or parameters is seldom the same twice.
        """
        if message.id or message.parameters:
            return
        if any(entry.parameters for entry in message.inputs) or any(entry.parameters for entry in message.outputs):
            return
        if len(message.raw_input_contents) != len(request.inputs):
            return
        places = _places(data, message, request)
        if not places:
            return
        start = places[0].offset - len(places[0].frame)
        if start > _MAX_HEAD or not _is_head(data[:start]):
            return
        if len(self._by_length) >= _MAX_LENGTHS:
            self._by_length.clear()
        alike = self._by_length.setdefault(len(data), [])
        if len(alike) >= _MAX_ALIKE:
            alike.clear()
        alike.append(_Known(data[:start], request.model_name, request.model_version, request.requested_outputs, places))


def _places(data: bytes, message: pb.ModelInferRequest, request: InferRequest) -> tuple[_InputSlot, ...]:
    """Where the inputs' bytes are if they are the end of ``data``; else nothing."""
    places: list[_InputSlot] = []
    end = len(data)
    for entry, raw in zip(reversed(message.inputs), reversed(message.raw_input_contents), strict=True):
        tensor = request.inputs[entry.name]
        info = BY_TYPE[tensor.data_type]
        frame = frame_of(_RAW, len(raw))
        offset = end - len(raw)
        if not info.size or not raw or not data.startswith(frame, max(0, offset - len(frame))):
            return ()
        places.append(_InputSlot(entry.name, info, tuple(tensor.shape), offset, frame))
        end = offset - len(frame)
    return tuple(reversed(places))


def _is_head(data: bytes) -> bool:
    """Whether ``data`` ends where a field ends, and has none of the tensors: what follows is then parsed by itself."""
    try:
        return not pb.ModelInferRequest.FromString(data).raw_input_contents
    except DecodeError:
        return False
