"""What a hosting platform sends, and what it gets back."""

from dataclasses import dataclass
from typing import Final, Protocol

from repoagent_server.http.messages import Request, Response

__all__ = ["UNKNOWN", "Platform", "Target"]

UNKNOWN: Final = Response(400)
"""The answer to a path that a platform does not have; without a body, as in Triton."""


@dataclass(frozen=True, slots=True)
class Target:
    """The request of the API that takes the place of a platform's request."""

    path: str
    """Path and query, percent-encoded."""
    method: bytes | None = None
    """None: the method that the route of ``path`` takes, POST if it takes several."""


class Platform(Protocol):
    """How one platform writes its requests."""

    @property
    def binary_type(self) -> bytes:
        """The media type of a body with binary tensors, up to the size of its JSON."""

    def target(self, request: Request) -> Target | Response:
        """Where ``request`` belongs; the answer to it if it belongs nowhere."""
