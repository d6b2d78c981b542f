"""``x-request-id`` over grpcio: back to the client with the first metadata. HTTP/2 of our own writes it itself."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc

from repoagent_server.shared.request_id import NAME, found_in

__all__ = ["RequestIds", "request_id"]


def request_id(context: Any) -> str:
    """The one of a call; "" if it has none."""
    known: str | None = getattr(context, "request_id", None)
    return found_in(context.invocation_metadata()) if known is None else known


class RequestIds(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types for it
    """Repeats the one of a call."""

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        found = found_in(details.invocation_metadata)
        return handler if handler is None or not found else _Repeating(handler, ((NAME, found),)).handler()


@dataclass(frozen=True, slots=True)
class _Repeating:
    inner: Any
    metadata: tuple[tuple[str, str], ...]

    def handler(self) -> Any:
        """A handler of the same kind."""
        inner = self.inner
        kinds = {
            "unary_unary": (grpc.unary_unary_rpc_method_handler, self._answer),
            "unary_stream": (grpc.unary_stream_rpc_method_handler, self._stream),
            "stream_unary": (grpc.stream_unary_rpc_method_handler, self._answer),
            "stream_stream": (grpc.stream_stream_rpc_method_handler, self._stream),
        }
        kind = next(name for name in kinds if getattr(inner, name) is not None)
        make, wrap = kinds[kind]
        return make(wrap(getattr(inner, kind)), inner.request_deserializer, inner.response_serializer)

    def _answer(self, method: Any) -> Any:
        async def answer(request: Any, context: Any) -> Any:
            await context.send_initial_metadata(self.metadata)
            return await method(request, context)

        return answer

    def _stream(self, method: Any) -> Any:
        if inspect.isasyncgenfunction(method):

            async def stream(request: Any, context: Any) -> Any:
                await context.send_initial_metadata(self.metadata)
                async for message in method(request, context):
                    yield message

            return stream
        return self._answer(method)
