"""The shared memory extensions over gRPC: messages to the handler's calls, and parameters of tensors to places."""

from collections.abc import Mapping
from typing import Any

from repoagent.errors import InvalidArgumentError
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.handlers.shared_memory import Regions, Span
from repoagent_server.handlers.shared_memory_region import Region

__all__ = ["read_span", "status_message"]

_REGION = "shared_memory_region"
_NUMBERS = ("shared_memory_offset", "shared_memory_byte_size")


def read_span(tensor: str, parameters: Mapping[str, pb.InferParameter], regions: Regions) -> Span | None:
    """Where ``tensor`` lies in shared memory, None if its parameters do not say that it does.

    Raises:
        InvalidArgumentError: they are incomplete or of the wrong type, or the place lies outside of the region.
        NotFoundError: there is no such region.
        UnsupportedError: shared memory is not allowed.
    """
    if _REGION not in parameters:
        for name in _NUMBERS:
            if name in parameters:
                raise InvalidArgumentError(
                    f"'{name}' can not be specified without '{_REGION}' parameter for tensor '{tensor}'"
                )
        return None
    region = _typed(tensor, _REGION, parameters, "string_param")
    # A negative number is a large one, as in Triton.
    offset, size = (
        _typed(tensor, name, parameters, "int64_param") % 2**64 if name in parameters else None for name in _NUMBERS
    )
    if size is None:
        raise InvalidArgumentError(
            f"'{_NUMBERS[1]}' must be specified along with '{_REGION}' parameter for tensor '{tensor}'"
        )
    return regions.span(region, offset or 0, size)


def _typed(tensor: str, name: str, parameters: Mapping[str, pb.InferParameter], kind: str) -> Any:
    parameter = parameters[name]
    if parameter.WhichOneof("parameter_choice") != kind:
        raise InvalidArgumentError(f"invalid value type for '{name}' parameter for tensor '{tensor}', expected {kind}.")
    return getattr(parameter, kind)


def status_message(regions: list[Region]) -> pb.SystemSharedMemoryStatusResponse:
    """The regions by name."""
    status = pb.SystemSharedMemoryStatusResponse.RegionStatus
    shown = {it.name: status(name=it.name, key=it.key, offset=it.offset, byte_size=it.byte_size) for it in regions}
    return pb.SystemSharedMemoryStatusResponse(regions=shown)
