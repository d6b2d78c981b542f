"""Refusing calls of restricted protocols before anything of their requests is read."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
from grpc_health.v1 import health

from repoagent.audit import NO_AUDIT, Actor, Audit
from repoagent_server.handlers.restrictions import Api, Restriction, Restrictions

__all__ = ["PROTOCOLS", "RestrictedProtocols"]

#: Which protocol each method of the service belongs to.
PROTOCOLS: Final = {
    "ServerLive": Api.HEALTH,
    "ServerReady": Api.HEALTH,
    "ModelReady": Api.HEALTH,
    "ServerMetadata": Api.METADATA,
    "ModelMetadata": Api.METADATA,
    "ModelInfer": Api.INFERENCE,
    "ModelStreamInfer": Api.INFERENCE,
    "ModelConfig": Api.MODEL_CONFIG,
    "ModelStatistics": Api.STATISTICS,
    "RepositoryIndex": Api.MODEL_REPOSITORY,
    "RepositoryModelLoad": Api.MODEL_REPOSITORY,
    "RepositoryModelUnload": Api.MODEL_REPOSITORY,
    "SystemSharedMemoryStatus": Api.SHARED_MEMORY,
    "SystemSharedMemoryRegister": Api.SHARED_MEMORY,
    "SystemSharedMemoryUnregister": Api.SHARED_MEMORY,
    "CudaSharedMemoryStatus": Api.SHARED_MEMORY,
    "CudaSharedMemoryRegister": Api.SHARED_MEMORY,
    "CudaSharedMemoryUnregister": Api.SHARED_MEMORY,
    "TraceSetting": Api.TRACE,
    "LogSettings": Api.LOGGING,
}


class RestrictedProtocols(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types for it
    """Lets a call through if its protocol is open, or it has the header; the health service is ``health``."""

    def __init__(self, service: str, restrictions: Restrictions, audit: Audit = NO_AUDIT) -> None:
        """``audit`` gets what is refused; of calls with the same headers on one connection only the first."""
        self._audit = audit
        self._guards = {f"/{service}/{name}": restrictions.get(api) for name, api in PROTOCOLS.items()}
        self._health = restrictions.get(Api.HEALTH)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        refusal = self.refusal(details.method, details.invocation_metadata)
        return handler if handler is None or refusal is None else _refusing(handler, refusal)

    def refusal(self, method: str, metadata: Any) -> str | None:
        """Why a call is refused, None if it is not."""
        guard = self._guard(method)
        if guard is None or guard.admits(_first(metadata, guard.header)):
            return None
        text = f"This protocol is restricted, expecting header '{guard.header}'"
        self._audit.note("denied", "denied", {"route": method, "reason": text}, Actor("client", via="grpc"))
        return text

    def _guard(self, method: str) -> Restriction | None:
        if method.startswith(f"/{health.SERVICE_NAME}/"):
            return self._health
        return self._guards.get(method)


def _first(metadata: Any, name: str) -> bytes | None:
    for key, value in metadata or ():
        if key == name:
            return value if isinstance(value, bytes) else value.encode(errors="surrogateescape")
    return None


def _refusing(handler: Any, text: str) -> Any:
    """A handler of the same kind that looks at no request."""

    async def refuse(_: object, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAVAILABLE, text)

    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    return make[handler.request_streaming, handler.response_streaming](refuse)
