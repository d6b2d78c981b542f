"""Access control of HTTP: who asks, and whether the route and its model are for this client."""

from collections.abc import Mapping
from typing import Final

from repoagent_server.access import Access, AccessError
from repoagent_server.access.credentials import given_in
from repoagent_server.http.messages import Header, Request, Response
from repoagent_server.http.router import Route
from repoagent_server.shared.client_text import client_text

_SHOWN: Final = 512
"""Bytes of a path that are reported."""
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
            self.report(error, request)
            response = route.refuse(client_text(error), error.status)
            response.headers = [*response.headers, *_challenge(error)]
            return response
        return None

    def report(self, error: AccessError, request: Request) -> None:
        """Report that ``request`` is denied. Thread-safe."""
        self._access.denied(error, route_of(request), address=request.address, request=request.id)

    def _admit(self, request: Request, route: Route, params: Mapping[str, str]) -> None:
        access, frame, need = self._access, request.frame, route.needs
        if need is not None and access.opens(need):
            return
        caller = frame.caller
        # Of a head that came before on the same connection the client is known, and good until the rules change.
        if caller is None:
            caller = access.caller(given_in(request.headers, request.peer)).at(request.address, request.id)
        else:
            caller = access.current(caller)
        frame.caller = caller
        access.require(caller, need, params.get("model", ""))


def route_of(request: Request) -> str:
    """What was asked for, for logs: without the query, in which clients put secrets."""
    path = request.target.partition(b"?")[0][:_SHOWN]
    return f"{request.method.decode('latin-1')} {path.decode('latin-1')}"


def _challenge(error: AccessError) -> list[Header]:
    return [(_CHALLENGE, error.challenge.encode())] if error.challenge else []
