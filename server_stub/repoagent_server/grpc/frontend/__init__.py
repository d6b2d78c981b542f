"""The gRPC front end: a server on a thread of its own, with health and reflection."""

import asyncio
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from repoagent.config import model_config_pb2
from repoagent.errors import UnavailableError
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.access import RestrictedProtocols
from repoagent_server.grpc.http2.dispatcher import Dispatcher
from repoagent_server.grpc.http2.socket_protocol import SocketProtocol
from repoagent_server.grpc.service import METHODS, SERVICE, GrpcService
from repoagent_server.handlers.headers import HeaderForwarding, Restrictions
from repoagent_server.handlers.inference import Served
from repoagent_server.http.frontend import Frontend, Protocols, Running
from repoagent_server.http.listener import bound, bound_unix, is_unix
from repoagent_server.shared.connections import FLUSH_SECONDS
from repoagent_server.shared.grpc_options import GrpcOptions
from repoagent_server.tls.certificates import Certificates, HeldCertificates

_PACKAGE, _, _SERVICE_NAME = SERVICE.rpartition(".")
_STALL_SECONDS: Final = 60.0
"""For at least this long, at most for twice as long, a client may be silent in the middle of something."""
_PART_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.005


def public_pool() -> DescriptorPool:
    """The messages renamed into package ``inference``, as clients know them, with the service that uses them.

    It is kept apart from the default pool, where a client library of this process may have registered its own.
    """
    pool = DescriptorPool()
    config, messages = FileDescriptorProto(), FileDescriptorProto()
    model_config_pb2.DESCRIPTOR.CopyToProto(config)
    pb.DESCRIPTOR.CopyToProto(messages)
    for file, name in ((config, "model_config.proto"), (messages, "grpc_service.proto")):
        file.name = name
    del messages.dependency[:]
    messages.dependency.append(config.name)
    service = messages.service.add(name=_SERVICE_NAME)
    package = messages.package
    for method, (request, response) in METHODS.items():
        service.method.add(
            name=method,
            input_type=f".{request.DESCRIPTOR.full_name}",
            output_type=f".{response.DESCRIPTOR.full_name}",
        )
    service.method.add(
        name="ModelStreamInfer",
        input_type=f".{package}.ModelInferRequest",
        output_type=f".{package}.ModelStreamInferResponse",
        client_streaming=True,
        server_streaming=True,
    )
    for file in (config, messages):
        pool.AddSerializedFile(_renamed(file, (package, model_config_pb2.DESCRIPTOR.package)))
    return pool


def _renamed(file: FileDescriptorProto, packages: tuple[str, ...]) -> bytes:
    """The file with its package, and every reference into one of ``packages``, moved to the public package."""
    file.package = _PACKAGE
    references = [
        *(field for message in _messages(file) for field in message.field),
        *(method for service in file.service for method in service.method),
    ]
    for reference in references:
        for attribute in ("type_name", "input_type", "output_type"):
            for package in packages:
                value = getattr(reference, attribute, "")
                if value.startswith(f".{package}."):
                    setattr(reference, attribute, f".{_PACKAGE}.{value[len(package) + 2 :]}")
    return file.SerializeToString()


def _messages(file: FileDescriptorProto) -> Iterator[DescriptorProto]:
    stack = list(file.message_type)
    while stack:
        message = stack.pop()
        yield message
        stack.extend(message.nested_type)


class GrpcFrontend(Frontend):
    """Serves a core over gRPC, with health and reflection."""

    name = "grpc"

    def __init__(
        self,
        served: Served,
        options: GrpcOptions,
        *,
        restrictions: Restrictions | None = None,
        tls: HeldCertificates | None = None,
    ) -> None:
        """``restrictions``: what needs a header. ``tls``: what TLS is served with, which ends with the front end; None
        follows the files that ``options`` name, if any."""
        super().__init__(
            (options.address, options.port),
            tls,
            shared=options.reuse_port,
            stall_seconds=_STALL_SECONDS,
            tls_handshakes=served.limits.tls_handshakes,
        )
        self._served = served
        self._options = options
        self._forwarding = HeaderForwarding(options.forward_header_pattern)
        self._guards: RestrictedProtocols | None = None
        if restrictions:
            self._guards = RestrictedProtocols(SERVICE, restrictions, served.denials, served.request_log)
        self._grace = 0.0
        self._service: GrpcService
        self._dispatcher: Dispatcher
        self._health: health.aio.HealthServicer

    def drain(self, timeout: float) -> bool:
        """Let what runs finish for at most ``timeout`` seconds, then close; True, as what is left is cancelled.

        What has been written has a little time to get out. A stream that a client holds open brings nothing more.
        """
        super().drain(timeout)
        self._grace = min(timeout, FLUSH_SECONDS)
        self.stop()
        return True

    def stop(self) -> None:
        """See :meth:`Frontend.stop`."""
        self.refuse()
        super().stop()

    def _listening(self) -> tuple[socket.socket, tuple[str, int]]:
        files = self._options.tls_files() if self._certificates is None else None
        if files is not None:
            self._certificates = Certificates(files)
        listener = _listening(*self._place, self._shared)
        name = listener.getsockname()
        return listener, (self._options.address, int(name[1]) if isinstance(name, tuple) else 0)

    async def _open(self, running: Running) -> Protocols:
        options, reserve = self._options, self._served.reserve
        self._health = await _health()
        self._service = GrpcService(
            self._served,
            running.loop,
            running.pools,
            forwarding=self._forwarding,
            in_flight=running.in_flight,
            join=None,
        )
        dispatcher = self._dispatcher = Dispatcher(
            running.loop,
            self._service,
            _collected(self._health),
            guards=self._guards,
            max_message=options.max_message_bytes,
            compression=options.compression_level(),
            reserve=reserve,
        )
        return lambda: SocketProtocol(dispatcher, running.connections, options)

    async def _refuse(self, running: Running) -> None:
        """Clients are asked to go elsewhere first, so that none has to be refused that knows where to go."""
        if not self._service.stopping:
            if self._shared:
                await running.stop_listening(shared=True)  # What begins now is left to the server that follows.
            deadline = running.loop.time() + _PART_SECONDS
            while not self._parted(running) and running.loop.time() < deadline:
                await asyncio.sleep(_POLL_SECONDS)
        self._service.stopping = True
        await asyncio.sleep(0)  # A call that found the flag down has been handed over after a turn.

    def _parted(self, running: Running) -> bool:
        """Ask every client to go, and those whose handshake has ended since; whether all have heard."""
        self._send_away(running)
        return all(isinstance(one, SocketProtocol) and one.connection.control.parted for one in running.connections)

    def _send_away(self, running: Running) -> None:
        for one in running.connections:
            if isinstance(one, SocketProtocol):
                one.part()

    async def _close(self, running: Running) -> None:
        await self._health.enter_graceful_shutdown()
        self._send_away(running)
        await running.connections.gone(self._grace)
        tasks = list(self._dispatcher.tasks)
        await running.connections.close_all(0.0)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=FLUSH_SECONDS)


def _listening(address: str, port: int, reuse_port: bool) -> socket.socket:
    """A socket that has the address and does not listen yet: ``host``, ``::1``, ``[::1]``, ``unix:PATH``.

    Raises:
        UnavailableError: the address cannot be had.
    """
    try:
        if is_unix(address):
            return bound_unix(address, port)
        return bound(address.removeprefix("[").removesuffix("]"), port, reuse_port)
    except UnavailableError as error:
        where = address if is_unix(address) else f"{address}:{port}"
        raise UnavailableError(f"gRPC cannot listen on {where}: the address is in use or not ours") from error


async def _health() -> health.aio.HealthServicer:
    servicer = health.aio.HealthServicer()
    for name in ("", SERVICE):
        await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    return servicer


class _Collector:
    """In the place of a server, to which generated code adds its handlers."""

    def __init__(self) -> None:
        self.handlers: list[Any] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self.handlers += handlers

    def add_registered_method_handlers(self, *_: object) -> None:
        pass  # the same ones in another form


def _collected(health_servicer: health.aio.HealthServicer) -> list[Any]:
    """The handlers of the health service and of reflection."""
    names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
    collector = _Collector()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, collector)
    servicer = reflection.aio.ReflectionServicer(names, pool=public_pool())
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, collector)
    return collector.handlers
