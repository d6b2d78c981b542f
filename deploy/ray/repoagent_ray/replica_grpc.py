"""Inference over gRPC in a replica: messages that an ingress passed on go through the methods of the server."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from repoagent_server.grpc.response import status_of
from repoagent_server.grpc.service import SERVICE, GrpcService
from repoagent_server.handlers.headers import HeaderForwarding
from repoagent_server.handlers.inference import Served
from repoagent_server.shared.pools import Pools

from repoagent.server import Server
from repoagent_ray.grpc_calls import CallContext, CallEnded, Named, answer_once, one
from repoagent_ray.settings import Settings
from repoagent_ray.wire import GrpcAnswer, GrpcCall, GrpcEnd

_INFER: Final = Named(f"/{SERVICE}/ModelInfer")
_STREAM: Final = Named(f"/{SERVICE}/ModelStreamInfer")


class ReplicaGrpc:
    """Answers messages on the event loop on which it is called. Who may ask was decided in the ingress."""

    def __init__(self, server: Server, settings: Settings, pools: Pools) -> None:
        self._core = server.core
        self._pools = pools
        self._limits = settings.limits
        self._forwarding = HeaderForwarding(settings.forward_headers)
        self._service: GrpcService | None = None

    async def once(self, call: GrpcCall) -> bytes | GrpcAnswer | GrpcEnd:
        """The answer to a message of ModelInfer."""
        context = CallContext(call.metadata)
        try:
            message = await answer_once(self._handler(_INFER), call.message, context)
        except CallEnded as ended:
            return ended.end
        return GrpcAnswer(message, context.receipt) if context.receipt else message

    async def stream(self, call: GrpcCall) -> AsyncIterator[bytes | GrpcEnd]:
        """The answers to one message of ModelStreamInfer."""
        context = CallContext(call.metadata)
        running = asyncio.ensure_future(self._run(call, context))
        try:
            while (message := await context.written.get()) is not None:
                yield message
        finally:
            running.cancel()

    async def _run(self, call: GrpcCall, context: CallContext) -> None:
        """Write what answers ``call``, then None. One that is cancelled, because no one reads, writes no more."""
        try:
            await self._handler(_STREAM).stream_stream(one(call.message), context)
        except CallEnded as ended:
            await context.written.put(ended.end)
        except Exception as error:
            code, text = status_of(error)
            await context.written.put(GrpcEnd(code.value[0], text))
        await context.written.put(None)

    def _handler(self, method: Named) -> Any:
        if self._service is None:
            loop = asyncio.get_running_loop()
            self._service = GrpcService(
                Served(self._core, limits=self._limits), loop, self._pools, forwarding=self._forwarding
            )
        return self._service.service(method)
