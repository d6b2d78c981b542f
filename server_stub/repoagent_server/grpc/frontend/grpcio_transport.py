"""gRPC over grpcio."""

from typing import Any

import grpc

from repoagent.errors import UnavailableError
from repoagent_server.grpc.access import GrpcioAccess
from repoagent_server.grpc.request_ids import RequestIds
from repoagent_server.grpc.transport import Served
from repoagent_server.tls.certificates import Certificates
from repoagent_server.tls.files import Material

__all__ = ["GrpcioTransport"]


def _interceptors(served: Served) -> list[Any]:
    """What a call passes, the first first: restricted protocols, then access control."""
    access = [] if served.access is None else [GrpcioAccess(served.access, served.calls.log)]
    return access if served.guards is None else [served.guards, *access]


class GrpcioTransport:
    """A :class:`~repoagent_server.grpc.transport.Transport`."""

    def __init__(self, served: Served) -> None:
        options = served.options
        self._options = options
        files = options.tls_files()
        self._credentials: grpc.ServerCredentials | None = None
        self.certificates: Certificates | None = None
        if files is not None:
            self.certificates = Certificates(files)
            self._credentials = _Rotation(self.certificates).credentials(files.mutual)
        self._server = grpc.aio.server(
            interceptors=[RequestIds(), *_interceptors(served)],
            options=options.channel_options(),
            compression=options.compression(),
        )
        self._server.add_generic_rpc_handlers((served.service, *served.others))

    def bind(self) -> int:
        address = f"{self._options.address}:{self._options.port}"
        try:
            if self._credentials is not None:
                return int(self._server.add_secure_port(address, self._credentials))
            return int(self._server.add_insecure_port(address))
        except RuntimeError as error:
            raise UnavailableError(f"gRPC cannot listen on {address}: the address is in use or not ours") from error

    async def start(self) -> None:
        await self._server.start()
        if self.certificates is not None:
            self.certificates.watch()

    async def part(self) -> None:
        pass  # grpcio has no way to ask

    async def stop(self, grace: float) -> None:
        if self.certificates is not None:
            self.certificates.close()
        await self._server.stop(grace)


class _Rotation:
    """Asked at each handshake, on threads of the library: a certificate that has changed, else None."""

    def __init__(self, certificates: Certificates) -> None:
        self.certificates = certificates
        self._given: Material | None = None

    def credentials(self, mutual: bool) -> "grpc.ServerCredentials":
        return grpc.dynamic_ssl_server_credentials(self(), self, mutual)

    def __call__(self) -> "grpc.ServerCertificateConfiguration | None":
        material = self.certificates.material
        if material is self._given:
            return None
        self._given = material
        return grpc.ssl_server_certificate_configuration([(material.key, material.certificate)], material.root)
