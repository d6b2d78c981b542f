"""The routes of the shared memory extensions."""

import base64
import binascii
from typing import Any, Final

from repoagent.errors import InternalError, InvalidArgumentError
from repoagent_server.access import Right
from repoagent_server.access.rights import for_all
from repoagent_server.codec.fields import MISSING, as_string, as_unsigned, find
from repoagent_server.handlers.restrictions import Api
from repoagent_server.handlers.shared_memory import Regions
from repoagent_server.handlers.shared_memory_region import Region
from repoagent_server.http.json_body import document
from repoagent_server.http.messages import Request, Response, json_response
from repoagent_server.http.router import Params, Route

__all__ = ["shared_memory_routes"]

_GET: Final = frozenset({b"GET"})
_POST: Final = frozenset({b"POST"})
_REGION: Final = "(?:/region/(?P<region>[^/]+))?"
_CUDA_HANDLE_SIZE: Final = 64


def shared_memory_routes(regions: Regions) -> list[Route]:
    """Status, register and unregister of both kinds."""
    system, cuda = _SystemRoutes(regions), _CudaRoutes(regions)
    return [
        Route(
            f"/v2/{kind}sharedmemory{_REGION}/{action}",
            methods,
            inline=getattr(routes, action),
            api=Api.SHARED_MEMORY,
            needs=for_all(Right.MANAGE),
        )
        for kind, routes in (("system", system), ("cuda", cuda))
        for action, methods in (("status", _GET), ("register", _POST), ("unregister", _POST))
    ]


class _SystemRoutes:
    def __init__(self, regions: Regions) -> None:
        self._regions = regions

    def status(self, _: Request, params: Params) -> Response:
        return json_response([_shown(region) for region in self._regions.status(params["region"])])

    def register(self, request: Request, params: Params) -> Response:
        name = params["region"]
        given = _document(request, name, "system")
        key = as_string(_required(given, "key"))
        offset = find(given, "offset")
        offset = 0 if offset is MISSING else as_unsigned(offset)
        self._regions.register(name, key, offset, as_unsigned(_required(given, "byte_size")))
        return Response()

    def unregister(self, _: Request, params: Params) -> Response:
        self._regions.unregister(params["region"])
        return Response()


class _CudaRoutes:
    """There is no GPU to share the memory of; requests are read all the same, so that they get Triton's answers."""

    def __init__(self, regions: Regions) -> None:
        self._regions = regions

    def status(self, _: Request, params: Params) -> Response:
        self._regions.check_cuda(params["region"])
        return json_response([])

    def register(self, request: Request, params: Params) -> Response:
        name = params["region"]
        given = _document(request, name, "cuda")
        handle = as_string(_member(_required(given, "raw_handle"), "b64"))
        for number in ("byte_size", "device_id"):
            as_unsigned(_member(given, number))
        _check_handle(handle)
        self._regions.register_cuda(name)
        return Response()

    def unregister(self, _: Request, __: Params) -> Response:
        # Clients ask for this without having registered anything; it succeeds in Triton too.
        return Response()


def _shown(region: Region) -> dict[str, Any]:
    return {"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.byte_size}


def _document(request: Request, name: str, kind: str) -> Any:
    if not name:
        raise InvalidArgumentError(f"'region name' is necessary to register {kind} shared memory region")
    return document(request)


def _required(document: object, name: str) -> Any:
    found = find(document, name)
    if found is MISSING:
        raise InvalidArgumentError(f"Shared memory register request has no '{name}' field")
    return found


def _member(document: object, name: str) -> Any:
    found = find(document, name)
    if found is MISSING:
        raise InternalError(f"attempt to access non-existing object member '{name}'")
    return found


def _check_handle(text: str) -> None:
    try:
        size = len(base64.b64decode(text))
    except binascii.Error:
        size = 0
    if size != _CUDA_HANDLE_SIZE:
        raise InvalidArgumentError("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
