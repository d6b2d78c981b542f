"""What carries gRPC: grpcio, or HTTP/2 of our own. Both run the same handlers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from repoagent.limits import Limits
from repoagent_server.grpc.access import CallAccess
from repoagent_server.grpc.infer import InferCalls
from repoagent_server.grpc.restricted import RestrictedProtocols
from repoagent_server.grpc.service import GrpcService
from repoagent_server.shared.grpc_options import GrpcOptions
from repoagent_server.shared.pools import Pools
from repoagent_server.shared.reserve import Reserve
from repoagent_server.tls.certificates import Certificates

__all__ = ["Served", "Transport"]


@dataclass(frozen=True, slots=True)
class Served:
    """What is served, and how."""

    options: GrpcOptions
    limits: Limits
    reserve: Reserve
    service: GrpcService
    calls: InferCalls
    others: Sequence[Any]
    """Handlers of further services: health and reflection."""
    guards: RestrictedProtocols | None
    pools: Pools
    access: CallAccess | None = None


class Transport(Protocol):
    """Belongs to one event loop, on whose thread it is made and called."""

    certificates: Certificates | None
    """Of TLS."""

    def bind(self) -> int:
        """Take the address; the port.

        Raises:
            UnavailableError: it cannot be had.
            InvalidArgumentError: a file for TLS cannot be read.
        """

    async def start(self) -> None:
        """Accept calls."""

    async def part(self) -> None:
        """Ask clients to go elsewhere with new calls, as far as there is a way to ask. Those that come are served."""

    async def stop(self, grace: float) -> None:
        """Close every connection; calls that run have ``grace`` seconds."""
