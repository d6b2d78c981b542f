"""What an ingress reads of a message of inference: the model that it is for."""

from dataclasses import dataclass

from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.wire import LONG_MESSAGE, check_infer, split_raw

from repoagent.limits import Limits

__all__ = ["MessageHead", "head_of"]


@dataclass(frozen=True, slots=True)
class MessageHead:
    """The first fields of a request."""

    model: str
    version: str
    id: str


def head_of(message: bytes, limits: Limits) -> MessageHead:
    """Read as a replica reads it: by the parser of the protocol, with which a field that comes twice counts last.

    The raw tensors of a large message are stepped over.

    Raises:
        DecodeError: it is not a request.
        InvalidArgumentError: it has more fields than ``limits`` allow.
    """
    if len(message) >= LONG_MESSAGE:
        check_infer(message, limits)
        message = bytes(split_raw(message)[0])
    request = pb.ModelInferRequest.FromString(message)
    return MessageHead(request.model_name, request.model_version, request.id)
