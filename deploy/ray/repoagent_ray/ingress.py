"""The ingress: what Ray's HTTP and gRPC proxies call. It finds the model of each request and passes it on."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import unquote

import grpc
from grpc_health.v1 import health_pb2
from ray.serve.grpc_util import RayServegRPCContext, gRPCInputStream
from ray.serve.handle import DeploymentHandle
from repoagent_server.access.access_file import AccessFile
from repoagent_server.grpc.service import METHODS
from repoagent_server.http.asgi import AsgiApp
from repoagent_server.shared.pools import Pools
from repoagent_server.shared.request_id import RECEIPT

from repoagent_ray.cluster_core import ClusterCore
from repoagent_ray.environment import PROXY
from repoagent_ray.grpc_calls import CallContext, CallEnded
from repoagent_ray.ingress_grpc import IngressGrpc
from repoagent_ray.ingress_http import ingress_service
from repoagent_ray.logs import Logs
from repoagent_ray.replicas import Replicas
from repoagent_ray.settings import Settings
from repoagent_ray.wire import GrpcEnd

logger = logging.getLogger(__name__)

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class Encoded(bytes):
    """The message of an answer, as Ray's proxy wants it."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - the name in protobuf
        return bytes(self)


class Ingress:
    """One process that passes requests on. Ray's gRPC proxy calls the method that has the name of the RPC."""

    def __init__(self, models: DeploymentHandle, settings: Settings) -> None:
        """Read the access file, if there is one.

        Raises:
            ConfigError: it cannot be used.
        """
        if os.environ.get(PROXY) != "1":
            logger.warning("Ray's proxy in Python takes the requests: %s=1 for all of Ray's processes is faster", PROXY)
        self._access = None if settings.access is None else AccessFile(settings.access)
        self._replicas = Replicas(models, asyncio.get_running_loop())
        self._logs = Logs(settings, "ingress")
        self._core = ClusterCore(self._replicas, self._logs.audit)
        self._pools = Pools("ingress-grpc")
        access = None if self._access is None else self._access.access
        if access is not None:
            access.observe(self._logs.denials.report)
        self._grpc = IngressGrpc(
            self._core,
            self._replicas,
            self._pools,
            access=access,
            limits=settings.limits,
            stream_requests=settings.stream_requests,
            log=self._logs.requests,
        )
        # Ray's proxy repeats x-request-id, and makes one where there is none.
        service = ingress_service(self._core, self._replicas, settings, access, self._logs)
        self._http = AsgiApp(service, max_body=settings.max_body, request_ids=False)

    def __serve_build_asgi_app__(self) -> AsgiApp:
        """Ray calls it for the application that its HTTP proxy talks to."""
        return self._http

    async def __del__(self) -> None:
        """Ray calls it once, when it ends the ingress in good order."""
        await asyncio.get_running_loop().run_in_executor(None, self._logs.close)

    async def ModelStreamInfer(  # noqa: N802 - the name of the RPC
        self, messages: gRPCInputStream, grpc_context: RayServegRPCContext
    ) -> AsyncIterator[Encoded]:
        """Any number of requests, each to a replica, and their answers as they come."""
        try:
            async for answer in self._grpc.stream(messages, _context(grpc_context)):
                yield Encoded(answer)
        except CallEnded as ended:
            _end(grpc_context, ended.end)
            raise

    async def Check(self, _: bytes) -> Encoded:  # noqa: N802 - the name of the RPC
        """Health, for probes."""
        ready = await asyncio.get_running_loop().run_in_executor(self._pools.work, self._core.ready)
        kinds = health_pb2.HealthCheckResponse
        return Encoded(kinds(status=kinds.SERVING if ready else kinds.NOT_SERVING).SerializeToString())


def _method(name: str) -> Any:
    """The method of an RPC with one request and one answer."""

    async def call(self: Ingress, message: bytes, grpc_context: RayServegRPCContext) -> Encoded:
        context = _context(grpc_context)
        try:
            answer = Encoded(await self._grpc.once(name, message, context))
        except CallEnded as ended:
            _end(grpc_context, ended.end)
            return Encoded()  # A status that is set needs no exception, which Ray would log.
        if context.receipt:  # Ray carries fields after an answer, none before it.
            grpc_context.set_trailing_metadata([(RECEIPT.decode(), context.receipt)])
        return answer

    call.__name__ = call.__qualname__ = name
    return call


for _name in METHODS:
    setattr(Ingress, _name, _method(_name))


def _address(peer: str) -> str:
    """``10.0.0.7:51234`` for what grpcio calls ``ipv4:10.0.0.7:51234``; also ``ipv6:%5B::1%5D:51234``, ``unix:``."""
    kind, _, rest = peer.partition(":")
    return unquote(rest) if kind in ("ipv4", "ipv6") else "unix"


def _context(context: RayServegRPCContext) -> CallContext:
    return CallContext(context.invocation_metadata(), _address(context.peer()))


def _end(context: RayServegRPCContext, end: GrpcEnd) -> None:
    context.set_code(_CODES[end.code])
    context.set_details(end.text)
