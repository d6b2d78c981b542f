"""Refusing requests to restricted parts of the API. Over gRPC, :mod:`repoagent_server.grpc.restricted` does that."""

from repoagent_server.handlers.restrictions import Restriction
from repoagent_server.http.messages import Request

__all__ = ["Guard"]


class Guard:
    """A restriction, ready to be compared with requests."""

    __slots__ = ("_name", "_restriction")

    def __init__(self, restriction: Restriction) -> None:
        self._restriction = restriction
        self._name = restriction.header.lower().encode()

    def refusal(self, request: Request) -> str | None:
        """Why ``request`` is not let in, or None if it has the header with the value that it must have."""
        if self._restriction.admits(request.header(self._name)):
            return None
        return f"This API is restricted, expecting header '{self._restriction.header}'"
