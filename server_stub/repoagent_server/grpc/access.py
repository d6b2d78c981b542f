"""Access control of gRPC: what each method needs, who calls, and which model a message names."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import grpc
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from repoagent_server.access import Access, AccessError, Caller, Need, PeerIdentity, Right, Scope
from repoagent_server.access.credentials import API_KEY, AUTHORIZATION, Given, given
from repoagent_server.access.rights import KNOWN, OPEN, for_all, for_model, listed
from repoagent_server.grpc.audit_actor import address
from repoagent_server.grpc.request_ids import request_id
from repoagent_server.grpc.running_request import log_refused
from repoagent_server.shared.client_text import client_text
from repoagent_server.shared.request_log import RequestLog

__all__ = ["NEEDS", "CallAccess", "GrpcioAccess", "caller_of", "code_of", "shown_by", "streaming"]

_HEALTH: Final = f"/{health.SERVICE_NAME}/"
_REFLECTION: Final = f"/{reflection.SERVICE_NAME}/"
_INFERS: Final = Need(Scope.BODY, Right.INFER)

#: What each method of the service needs. One that is missing here is refused to every client.
NEEDS: Final[Mapping[str, Need]] = {
    "ServerLive": OPEN,
    "ServerReady": OPEN,
    "ModelReady": for_model(Right.METADATA),
    "ServerMetadata": KNOWN,
    "ModelMetadata": for_model(Right.METADATA),
    "ModelInfer": _INFERS,
    "ModelStreamInfer": _INFERS,
    "ModelConfig": for_model(Right.METADATA),
    "ModelStatistics": for_model(Right.METADATA, unnamed=Scope.LISTED),
    "RepositoryIndex": listed(Right.METADATA),
    "RepositoryModelLoad": for_model(Right.MANAGE),
    "RepositoryModelUnload": for_model(Right.MANAGE),
    "SystemSharedMemoryStatus": for_all(Right.MANAGE),
    "SystemSharedMemoryRegister": for_all(Right.MANAGE),
    "SystemSharedMemoryUnregister": for_all(Right.MANAGE),
    "CudaSharedMemoryStatus": for_all(Right.MANAGE),
    "CudaSharedMemoryRegister": for_all(Right.MANAGE),
    "CudaSharedMemoryUnregister": for_all(Right.MANAGE),
    "TraceSetting": for_model(Right.MANAGE, unnamed=Scope.SERVER),
    "LogSettings": for_all(Right.MANAGE),
}


class CallAccess:
    """Decides about calls: with their headers whether a client calls, with their message whether it has the right."""

    def __init__(self, access: Access, service: str) -> None:
        self._access = access
        self._needs = {f"/{service}/{name}": need for name, need in NEEDS.items()}

    def need(self, method: str) -> Need | None:
        """What the method with this path needs; None if nobody has stated that."""
        need = self._needs.get(method)
        if need is not None:
            return need
        if method.startswith(_HEALTH):
            return OPEN
        return KNOWN if method.startswith(_REFLECTION) else None

    def begin(
        self, method: str, given: Callable[[], Given], known: Caller | None = None, *, address: str, request: str
    ) -> Caller | None:
        """Who calls, for a call whose headers are there; None where nobody needs a key.

        ``given``: what the headers and the connection show. ``known``: who the caller was the last time that these
        headers came on this connection. ``address`` and ``request``: where that comes from, and the ``x-request-id``.

        Raises:
            AccessError: it is no client, or lacks the right whatever the message is.
        """
        access, need = self._access, self.need(method)
        try:
            if need is not None and access.opens(need):
                return None
            caller = access.caller(given()).at(address, request) if known is None else access.current(known)
            if need is None or need.scope is Scope.SERVER:
                access.require(caller, need)
        except AccessError as error:
            access.denied(error, method, "grpc", address=address, request=request)
            raise
        return caller

    def check(self, method: str, caller: Caller | None, model: str) -> Caller | None:
        """Check the right of ``caller`` when the message, which names ``model`` or nothing, is there.

        A client may wait as long as it likes between headers and message, so the rules of now count: what is returned
        is the caller by them.

        Raises:
            AccessError: it lacks the right, or belongs to no client any more.
        """
        access, need = self._access, self.need(method)
        if need is not None and need.scope is Scope.OPEN:
            return caller
        try:
            assert caller is not None, "a call that is not open has a client"
            caller = access.current(caller)
            access.require(caller, need, model)
        except AccessError as error:
            place, request = (caller.address, caller.request) if caller is not None else ("", "")
            self.report(error, method, address=place, request=request)
            raise
        return caller

    def report(self, error: AccessError, method: str, *, address: str, request: str) -> None:
        """Report that a call of ``method`` is denied."""
        self._access.denied(error, method, "grpc", address=address, request=request)


class GrpcioAccess(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types for it
    """The first half for grpcio, whose interceptors do not see certificates: each handler begins with the check.

    grpcio receives the message of a unary call before its handler begins, up to the largest that is allowed. So all
    handlers take streams here: what a client sends that is not let in stays with it.
    """

    def __init__(self, calls: CallAccess, log: RequestLog | None = None) -> None:
        """``log`` gets a line for each call of inference that is not let in."""
        self._calls = calls
        self._log = log

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        return None if handler is None else self._checked(handler, details.method)

    def _checked(self, handler: Any, method: str) -> Any:
        inners = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
        inner = next(one for one in inners if one is not None)
        takes = _all if handler.request_streaming else _only

        async def answers(messages: Any, context: Any) -> Any:
            known = await self._begun(method, context)
            return await inner(await takes(messages, context), known)

        async def streams(messages: Any, context: Any) -> AsyncIterator[Any]:
            known = await self._begun(method, context)
            async for answer in inner(await takes(messages, context), known):
                yield answer

        outer = streams if inspect.isasyncgenfunction(inner) else answers
        return streaming(handler)(outer, handler.request_deserializer, handler.response_serializer)

    async def _begun(self, method: str, context: Any) -> Any:
        """The context of a call that is let in, which knows the caller."""
        try:
            place, request = address(context), request_id(context)
            caller = self._calls.begin(method, lambda: shown_by(context), address=place, request=request)
        except AccessError as error:
            failure = error
        else:
            return _KnownContext(context, caller)
        log_refused(self._log, method, failure.grpc_status, request, failure.client)
        await context.abort(code_of(failure), client_text(failure))
        raise AssertionError("abort raises")


def streaming(handler: Any) -> Any:
    """What makes a handler of grpcio that answers as ``handler`` does, and gets messages only as it asks for them."""
    if handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler
    return grpc.stream_unary_rpc_method_handler


async def _all(messages: AsyncIterator[Any], _: Any) -> AsyncIterator[Any]:
    return messages


async def _only(messages: AsyncIterator[Any], context: Any) -> Any:
    """The message of a unary call."""
    async for message in messages:
        return message
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "the method takes exactly one message")
    raise AssertionError("abort raises")


class _KnownContext:
    """A context of grpcio, and who calls."""

    def __init__(self, context: Any, caller: Caller | None) -> None:
        self._context = context
        self.caller = caller

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def caller_of(context: Any) -> Caller | None:
    """Who calls, where access is controlled; None where it is not, and where nobody needs a key."""
    return getattr(context, "caller", None)


def code_of(error: AccessError) -> Any:
    """The status of grpc that stands for ``error``."""
    if error.grpc_status == grpc.StatusCode.UNAUTHENTICATED.value[0]:
        return grpc.StatusCode.UNAUTHENTICATED
    return grpc.StatusCode.PERMISSION_DENIED


def shown_by(context: Any) -> Given:
    """What a call over grpcio shows of its client; its metadata are text."""
    values: dict[str, list[bytes]] = {AUTHORIZATION: [], API_KEY: []}
    for name, value in context.invocation_metadata() or ():
        if name in values:
            values[name].append(value if isinstance(value, bytes) else value.encode(errors="surrogateescape"))
    return given(values[AUTHORIZATION], values[API_KEY], _peer(context))


def _peer(context: Any) -> PeerIdentity | None:
    """Of a call over grpcio, which verifies certificates by itself and shows their parts."""
    parts: Mapping[str, list[bytes]] = context.auth_context() or {}
    pem = parts.get("x509_pem_cert")
    if not pem or parts.get("transport_security_type") != [b"ssl"]:
        return None
    import ssl

    der = ssl.PEM_cert_to_DER_cert(pem[0].decode("ascii"))
    return PeerIdentity.of_names(
        der,
        [
            *(f"uri:{value.decode()}" for value in parts.get("peer_uri", ())),
            *(f"dns:{value.decode()}" for value in parts.get("peer_dns", ())),
            *(f"email:{value.decode()}" for value in parts.get("peer_email", ())),
        ],
        [value.decode() for value in parts.get("x509_common_name", ())],
    )
