"""Refusing calls of restricted protocols before anything of their requests is read."""

from typing import Any, Final

from grpc_health.v1 import health

from repoagent_server.access import Cause, Denied
from repoagent_server.access.denials import Denials
from repoagent_server.grpc.access import INFERENCE, RPCS
from repoagent_server.handlers.restrictions import Api, Restriction, Restrictions
from repoagent_server.handlers.running_request import log_refused
from repoagent_server.shared.request_log import RequestLog

__all__ = ["PROTOCOLS", "RestrictedProtocols"]

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
