"""Access control of gRPC: what each method needs, who calls, and which calls lack the header of a restricted part."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from repoagent_server.access import Access, AccessError, Caller, Cause, Denied, Need, Right, Scope
from repoagent_server.access.access import Denials
from repoagent_server.access.credentials import Given
from repoagent_server.access.rights import KNOWN, OPEN
from repoagent_server.handlers.headers import Api, Restriction, Restrictions
from repoagent_server.handlers.operations import OPERATIONS
from repoagent_server.shared.request_log import RequestLog, log_refused

_HEALTH: Final = f"/{health.SERVICE_NAME}/"
_REFLECTION: Final = f"/{reflection.SERVICE_NAME}/"
RPCS: Final = tuple(operation for operation in OPERATIONS if operation.name)
"""The operations that gRPC has."""
INFERENCE: Final = ("ModelInfer", "ModelStreamInfer")
"""The methods beside the table of operations."""

#: What each method of the service needs. One that is missing here is refused to every client.
NEEDS: Final[Mapping[str, Need]] = dict.fromkeys(INFERENCE, Need(Scope.BODY, Right.INFER)) | {
    operation.name: operation.needs for operation in RPCS
}


class CallAccess:
    """Decides about calls: with their headers whether a client calls, with their message whether it has the right."""

    def __init__(self, access: Access, service: str) -> None:
        self._access = access
        self._needs = {f"/{service}/{name}": need for name, need in NEEDS.items()}

    def need(self, method: str) -> Need | None:
        """What the method with this path needs; None if that is not stated."""
        need = self._needs.get(method)
        if need is not None:
            return need
        if method.startswith(_HEALTH):
            return OPEN
        return KNOWN if method.startswith(_REFLECTION) else None

    def begin(
        self, method: str, given: Callable[[], Given], known: Caller | None = None, *, address: str, request: str
    ) -> Caller | None:
        """Who calls, for a call whose headers are there; None if no key is needed.

        Args:
            method: Its path.
            given: Returns what the headers and the connection show.
            known: The caller of the call before with the same headers on this connection.
            address: That of the client.
            request: Its ``x-request-id``.

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


_UNAVAILABLE: Final = 14

#: Which protocol each method of the service belongs to.
PROTOCOLS: Final = dict.fromkeys(INFERENCE, Api.INFERENCE) | {operation.name: operation.api for operation in RPCS}


class RestrictedProtocols:
    """Lets a call through if its protocol is open, or it has the header; the health service is ``health``."""

    def __init__(
        self,
        service: str,
        restrictions: Restrictions,
        denials: Denials | None = None,
        log: RequestLog | None = None,
    ) -> None:
        """``denials`` gets each call that is refused, ``log`` a line for those of inference."""
        self._denials = denials or Denials()
        self._log = log
        self._guards = {f"/{service}/{name}": restrictions.get(api) for name, api in PROTOCOLS.items()}
        self._health = restrictions.get(Api.HEALTH)

    def refusal(self, method: str, metadata: Any) -> str | None:
        """Why a call is refused, None if it is not."""
        guard = self._guard(method)
        if guard is None or guard.admits(_first(metadata, guard.header)):
            return None
        return f"This protocol is restricted, expecting header '{guard.header}'"

    def refused(self, method: str, text: str, address: str, request: str) -> None:
        """Take note of a call that is refused with ``text``."""
        self._denials.report(Denied("", "", "", method, text, "grpc", Cause.RESTRICTED, address, request))
        log_refused(self._log, method, _UNAVAILABLE, request)

    def _guard(self, method: str) -> Restriction | None:
        if method.startswith(f"/{health.SERVICE_NAME}/"):
            return self._health
        return self._guards.get(method)


def _first(metadata: Any, name: str) -> bytes | None:
    for key, value in metadata or ():
        if key == name:
            return value if isinstance(value, bytes) else value.encode(errors="surrogateescape")
    return None
