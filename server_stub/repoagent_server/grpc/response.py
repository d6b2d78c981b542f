"""The core's answers to messages, and its errors to status codes."""

from collections.abc import Container, Mapping
from typing import Any, Final

import grpc
import numpy as np
from google.protobuf import json_format

from repoagent.config import read_json
from repoagent.errors import ErrorCode, RepoAgentError
from repoagent.serving.requests.request import InferResponse, ParameterValue
from repoagent.serving.requests.tensor import Array, DataType
from repoagent_server.access import AccessError
from repoagent_server.codec.binary import pack_bytes
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.access import code_of

#: Status of each of the core's error codes.
STATUS: Final[Mapping[ErrorCode, grpc.StatusCode]] = {
    ErrorCode.UNKNOWN: grpc.StatusCode.UNKNOWN,
    ErrorCode.INTERNAL: grpc.StatusCode.INTERNAL,
    ErrorCode.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorCode.INVALID_ARG: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.UNSUPPORTED: grpc.StatusCode.UNIMPLEMENTED,
    ErrorCode.ALREADY_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    ErrorCode.CANCELLED: grpc.StatusCode.CANCELLED,
}


def code_for(error: RepoAgentError) -> grpc.StatusCode:
    """The status that stands for ``error``."""
    return code_of(error) if isinstance(error, AccessError) else STATUS[error.code]


def infer_message(response: InferResponse, stored: Container[str] = ()) -> pb.ModelInferResponse:
    """A good response as a message, tensors raw as Triton sends them; those that are ``stored`` elsewhere are empty."""
    message = pb.ModelInferResponse(
        model_name=response.model_name, model_version=response.model_version, id=response.id
    )
    for name, value in response.parameters.items():
        set_parameter(message.parameters[name], value)
    for name, tensor in response.outputs.items():
        message.outputs.add(name=name, datatype=tensor.data_type.name, shape=tensor.array.shape)
        message.raw_output_contents.append(b"" if name in stored else _raw(tensor.data_type, tensor.array))
    return message


def _raw(data_type: DataType, array: Array) -> bytes:
    if data_type is DataType.BYTES:
        return pack_bytes(_as_bytes(element) for element in array.ravel())
    return np.ascontiguousarray(array).tobytes()


def _as_bytes(element: bytes | str) -> bytes:
    return element.encode() if isinstance(element, str) else element


def set_parameter(target: pb.InferParameter, value: ParameterValue) -> None:
    """Put ``value`` into the field of its type."""
    if isinstance(value, bool):
        target.bool_param = value
    elif isinstance(value, int):
        target.int64_param = value
    elif isinstance(value, float):
        target.double_param = value
    else:
        target.string_param = value


def config_message(config: Mapping[str, Any]) -> pb.ModelConfigResponse:
    """The configuration that the core shows as JSON, as a message."""
    return pb.ModelConfigResponse(config=read_json(config))


def statistics_message(statistics: Mapping[str, Any]) -> pb.ModelStatisticsResponse:
    """Statistics from the core's JSON, whose names are those of the message."""
    return json_format.ParseDict(dict(statistics), pb.ModelStatisticsResponse(), ignore_unknown_fields=True)


_ROOM: Final = 6000
"""Bytes on the wire. It travels in the trailers, of which gRPC refuses some from 8 KiB on and all from 16 KiB."""
_SURELY_SHORT: Final = _ROOM // 12
"""Characters of at most four bytes, of three characters each where they are escaped."""
_CUT: Final = " ... (cut)"


def details(message: str) -> str:
    """``message``, without its end if it is so long that the client would get an error about its length instead."""
    if len(message) <= _SURELY_SHORT:
        return message
    size = 0
    for position, char in enumerate(message):
        plain = " " <= char <= "~" and char != "%"
        size += 1 if plain else 3 * len(char.encode("utf-8", "surrogatepass"))
        if size > _ROOM:
            return message[:position] + _CUT
    return message
