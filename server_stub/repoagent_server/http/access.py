"""Access control of HTTP: who asks, and whether the route and its model are for this client."""

from collections.abc import Mapping
from typing import Final

from repoagent_server.access import Access, AccessError
from repoagent_server.access.credentials import API_KEY, AUTHORIZATION, Given, given
from repoagent_server.http.messages import Header, Request, Response
from repoagent_server.http.router import Route

__all__ = ["HttpAccess"]

_AUTHORIZATION: Final = AUTHORIZATION.encode()
_API_KEY: Final = API_KEY.encode()
_LENGTHS: Final = frozenset({len(_AUTHORIZATION), len(_API_KEY)})
_AROUND: Final = b" \t"
"""What may stand around a value, and is not part of it (RFC 9110); the parser leaves it behind the value."""
_CHALLENGE: Final = b"WWW-Authenticate"


class HttpAccess:
    """Decides about requests before their bodies are looked at. Belongs to one event loop."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def refusal(self, request: Request, route: Route, params: Mapping[str, str]) -> Response | None:
        """The answer to a request that is not let in; None if it is. Who asks is noted in the request."""
        try:
            self._admit(request, route, params)
        except AccessError as error:
            self._access.denied(error, f"{request.method.decode('latin-1')} {request.target.decode('latin-1')}")
            response = route.refuse(error.message, error.status)
            response.headers = [*response.headers, *_challenge(error)]
            return response
        return None

    def _admit(self, request: Request, route: Route, params: Mapping[str, str]) -> None:
        access, frame, need = self._access, request.frame, route.needs
        if need is not None and access.opens(need):
            return
        caller = frame.caller
        # Of a head that came before on the same connection the client is known, and good until the rules change.
        caller = access.caller(_given(request)) if caller is None else access.current(caller)
        frame.caller = caller
        access.require(caller, need, params.get("model", ""))


def _given(request: Request) -> Given:
    authorization: list[bytes] = []
    keys: list[bytes] = []
    for name, value in request.headers:
        if len(name) in _LENGTHS:
            lower = name.lower()
            if lower == _AUTHORIZATION:
                authorization.append(value.strip(_AROUND))
            elif lower == _API_KEY:
                keys.append(value.strip(_AROUND))
    return given(authorization, keys, request.peer)


def _challenge(error: AccessError) -> list[Header]:
    return [(_CHALLENGE, error.challenge.encode())] if error.challenge else []
