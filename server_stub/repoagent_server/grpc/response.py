"""The core's answers to messages, those of inference without protobuf's objects; its errors to status codes."""

import logging
from collections.abc import Container, Mapping
from typing import Any, Final

import grpc
import numpy as np
from google.protobuf import json_format

from repoagent.config import read_json
from repoagent.errors import ErrorCode, InternalError, RepoAgentError
from repoagent.serving.requests.request import InferResponse, ParameterValue
from repoagent.serving.requests.tensor import Array, DataType
from repoagent_server.access import AccessError
from repoagent_server.codec.binary import BY_TYPE, Buffer, pack_bytes
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.handlers.requested_outputs import as_bytes
from repoagent_server.shared.client_text import client_text

logger = logging.getLogger(__name__)
_RAW: Final = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
_BYTES_FIELD: Final = 2
_MAX_KNOWN: Final = 256
_VIEWED_FROM: Final = 1 << 14
"""Bytes from which a tensor is worth the look at its memory that saves a copy."""


def frame_of(field: int, length: int) -> bytes:
    """What stands before the ``length`` bytes of a field of type ``bytes``: its tag and the length."""
    frame = bytearray((field << 3 | _BYTES_FIELD,))
    while length > 0x7F:
        frame.append(length & 0x7F | 0x80)
        length >>= 7
    frame.append(length)
    return bytes(frame)


class ResponseWriter:
    """Good responses as bytes. What is the same in every response of a model is made once, tensors are copied once.

    The library's messages copy a tensor three times: with 1 MiB in and out a request costs the server 18 % more, with
    2 KiB as much as here (benchmarks/fast_paths.py). Belongs to one thread.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], tuple[bytes, ...]] = {}

    def write(self, response: InferResponse, stored: Container[str] = ()) -> bytes:
        """``infer_message(response, stored)`` on the wire."""
        parts = self.parts(response, stored)
        return parts[0] if len(parts) == 1 else b"".join(parts)  # type: ignore[return-value]  # one part is bytes

    def parts(self, response: InferResponse, stored: Container[str] = ()) -> list[Buffer]:
        """The same, not put together: large tensors are their own memory."""
        if stored:
            return [infer_message(response, stored).SerializeToString()]
        tensors = response.outputs.items()
        key = (
            response.model_name,
            response.model_version,
            *[(name, tensor.data_type, tensor.array.shape, tensor.array.nbytes) for name, tensor in tensors],
        )
        frames = self._known.get(key)
        if frames is None:
            if not tensors or any(not BY_TYPE[tensor.data_type].size for _, tensor in tensors):
                return [infer_message(response).SerializeToString()]
            frames = self._learn(key, response)
        pieces: list[Buffer] = [_own_fields(response)] if response.id or response.parameters else []
        for frame, (_, tensor) in zip(frames, tensors, strict=True):
            pieces += (frame, _contents(tensor.array))
        return pieces

    def _learn(self, key: tuple[object, ...], response: InferResponse) -> tuple[bytes, ...]:
        """What precedes each tensor: first all other fields, then the length of each."""
        message = pb.ModelInferResponse(model_name=response.model_name, model_version=response.model_version)
        for name, tensor in response.outputs.items():
            message.outputs.add(name=name, datatype=tensor.data_type.name, shape=tensor.array.shape)
        frames = [frame_of(_RAW, tensor.array.nbytes) for tensor in response.outputs.values()]
        frames[0] = message.SerializeToString() + frames[0]
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[key] = tuple(frames)
        return self._known[key]


def _own_fields(response: InferResponse) -> bytes:
    """What differs between responses of a model. The order of fields means nothing."""
    message = pb.ModelInferResponse(id=response.id)
    for name, value in response.parameters.items():
        set_parameter(message.parameters[name], value)
    return message.SerializeToString()


def _contents(array: Array) -> Buffer:
    """The bytes of ``array``: its memory where that is as it travels."""
    if array.nbytes < _VIEWED_FROM or not array.flags.c_contiguous:
        return array.tobytes()
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]  # an array is a buffer


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
    """As Triton's. Only for a request that was let in, here one with a ``model``, it has more than the id."""
    message = pb.ModelStreamInferResponse(error_message=client_text(error))
    message.infer_response.id = request_id
    if model is not None:
        message.infer_response.model_name = model
        message.infer_response.parameters[_FINAL].bool_param = final
    return message.SerializeToString()


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


_BY_NUMBER: Final = {code.value[0]: code for code in grpc.StatusCode}


def code_for(error: RepoAgentError) -> grpc.StatusCode:
    """The status that stands for ``error``."""
    return _BY_NUMBER[error.grpc_status] if isinstance(error, AccessError) else STATUS[error.code]


def error_for_client(error: Exception) -> RepoAgentError:
    """The error that a client gets for ``error``. A fault of ours is logged, and answered like any other."""
    if isinstance(error, RepoAgentError):
        return error
    logger.error("an inference request over gRPC failed: %s", error, exc_info=error)
    return InternalError(f"unexpected {type(error).__name__}; the server's log has the details")


def status_of(error: Exception) -> tuple[grpc.StatusCode, str]:
    """The status that a client gets for ``error``, and its text."""
    known = error_for_client(error)
    return code_for(known), details(client_text(known))


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
        return pack_bytes(as_bytes(element) for element in array.ravel())
    return np.ascontiguousarray(array).tobytes()


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
