"""Messages of ModelStreamInfer as bytes: a response, or an error, and whether it is the last of its request."""

from typing import Final

from repoagent.errors import RepoAgentError
from repoagent_server.codec.binary import Buffer
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.response_writer import frame_of
from repoagent_server.shared.client_text import client_text

__all__ = ["error_message", "response_message"]

_FINAL: Final = "triton_final_response"
_RESPONSE: Final = pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER


def _mark(final: bool) -> bytes:
    """The parameter, as a field of the response. Fields may come in any order, so it can be the last one."""
    response = pb.ModelInferResponse()
    response.parameters[_FINAL].bool_param = final
    return response.SerializeToString()


_MARKS: Final = (_mark(False), _mark(True))


def response_message(parts: list[Buffer], final: bool) -> bytes:
    """The message of a good response that consists of ``parts``."""
    mark = _MARKS[final]
    size = sum(map(len, parts)) + len(mark)
    return b"".join((frame_of(_RESPONSE, size), *parts, mark))


def error_message(error: RepoAgentError, request_id: str, model: str | None = None, final: bool = False) -> bytes:
    """As Triton's: only of a request that was let in, here one with a ``model``, is there more to say than its id."""
    message = pb.ModelStreamInferResponse(error_message=client_text(error))
    message.infer_response.id = request_id
    if model is not None:
        message.infer_response.model_name = model
        message.infer_response.parameters[_FINAL].bool_param = final
    return message.SerializeToString()
