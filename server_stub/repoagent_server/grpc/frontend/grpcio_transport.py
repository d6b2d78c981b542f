"""gRPC over grpcio."""

from typing import Any

import grpc

from repoagent.errors import UnavailableError
from repoagent_server.grpc.access import GrpcioAccess
from repoagent_server.grpc.transport import Served

__all__ = ["GrpcioTransport"]


def _interceptors(served: Served) -> list[Any]:
    """What a call passes, the first first: restricted protocols, then access control."""
    access = [] if served.access is None else [GrpcioAccess(served.access)]
    return access if served.guards is None else [served.guards, *access]


class GrpcioTransport:
    """A :class:`~repoagent_server.grpc.transport.Transport`."""

    def __init__(self, served: Served) -> None:
        options = served.options
        self._options = options
        self._server = grpc.aio.server(
            interceptors=_interceptors(served),
            options=options.channel_options(),
            compression=options.compression(),
        )
        self._server.add_generic_rpc_handlers((served.service, *served.others))

    def bind(self) -> int:
        address = f"{self._options.address}:{self._options.port}"
        credentials = self._options.credentials()
        try:
            if credentials is not None:
                return int(self._server.add_secure_port(address, credentials))
            return int(self._server.add_insecure_port(address))
        except RuntimeError as error:
            raise UnavailableError(f"gRPC cannot listen on {address}: the address is in use or not ours") from error

    async def start(self) -> None:
        await self._server.start()

    async def part(self) -> None:
        pass  # grpcio has no way to ask

    async def stop(self, grace: float) -> None:
        await self._server.stop(grace)
