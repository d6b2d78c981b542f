"""The gRPC front end: a server on a thread of its own, with health and reflection."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

import uvloop
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from repoagent.config import model_config_pb2
from repoagent.serving.instances.loop_reader import LoopReader
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.access import RestrictedProtocols
from repoagent_server.grpc.http2.dispatcher import Dispatcher
from repoagent_server.grpc.http2.transport import Http2Transport
from repoagent_server.grpc.service import METHODS, SERVICE, GrpcService
from repoagent_server.handlers.headers import HeaderForwarding, Restrictions
from repoagent_server.handlers.inference import Served
from repoagent_server.shared.connections import InFlight, come_round
from repoagent_server.shared.grpc_options import GrpcOptions
from repoagent_server.shared.pools import Pools
from repoagent_server.tls.certificates import HeldCertificates

_PACKAGE, _, _SERVICE_NAME = SERVICE.rpartition(".")


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


_FLUSH_SECONDS: Final = 2.0


class GrpcFrontend:
    """Serves a core over gRPC. ``bind``, ``start``, ``refuse``, ``drain``, ``stop``: as for HTTP."""

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
        forwarding = HeaderForwarding(options.forward_header_pattern)
        self._options = options
        self._tls = tls
        self._tls_handshakes = served.limits.tls_handshakes
        self._reserve = served.reserve
        self._guards: RestrictedProtocols | None = None
        if restrictions:
            self._guards = RestrictedProtocols(SERVICE, restrictions, served.denials, served.request_log)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="grpc", daemon=True)
        self._port: Future[int] = Future()
        self._serving: Future[None] = Future()
        self._service: GrpcService | None = None
        self._transport: Http2Transport | None = None
        self._go = asyncio.Event()
        self._stop = asyncio.Event()
        self._grace = 0.0
        self._in_flight = InFlight()
        self._make_service = partial(
            GrpcService, served, self._loop, forwarding=forwarding, in_flight=self._in_flight, join=None
        )

    def bind(self) -> tuple[str, int]:
        """Take the port, so that one in use shows early; nothing is answered yet. Gives address and port.

        Raises:
            UnavailableError: the address is in use or cannot be bound.
            InvalidArgumentError: a file for TLS cannot be read.
        """
        if self._thread.ident is None:
            self._thread.start()
        return self._options.address, self._port.result()

    @property
    def certificate_end(self) -> float | None:
        """When its TLS certificate ends, in seconds since the epoch; None without TLS."""
        certificates = self._transport.certificates if self._transport is not None else None
        return certificates.end if certificates is not None else None

    def start(self) -> None:
        """Serve; returns when calls are accepted. Raises as :meth:`bind`."""
        self.bind()
        self._loop.call_soon_threadsafe(self._go.set)
        self._serving.result()

    def refuse(self) -> None:
        """From now on refuse inference, load and unload; what runs goes on, and has reached the core by then.

        Clients are asked to go elsewhere first, so that none has to be refused that knows where to go.
        """
        serving = self._serving.done() and self._serving.exception() is None and self._thread.is_alive()
        if serving and self._service is not None and not self._service.stopping:
            asyncio.run_coroutine_threadsafe(self._part(), self._loop).result()
        if self._service is not None:
            self._service.stopping = True
        if serving:
            # A turn of the loop: a call that found the flag down has been handed over after it.
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result()

    def turn(self) -> None:
        """See :meth:`HttpFrontend.turn`."""
        if self._serving.done() and self._thread.is_alive():
            come_round(self._loop, self._thread)

    def on_loop(self, call: Callable[[InFlight], object]) -> None:
        """See :meth:`HttpFrontend.on_loop`."""
        if self._serving.done() and self._thread.is_alive():
            self._loop.call_soon_threadsafe(call, self._in_flight)

    def part(self, timeout: float) -> None:
        """See :meth:`HttpFrontend.part`."""
        if self._transport is not None and self._serving.done() and self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._transport.leave(timeout), self._loop).result()

    async def _part(self) -> None:
        if self._transport is not None:
            await self._transport.part()

    def drain(self, timeout: float) -> bool:
        """Let what runs finish for at most ``timeout`` seconds, then close; True, as what is left is cancelled.

        The library has a way to wait for running calls, too, and does once all have been answered, so that what has
        been written gets out. It gets little time for that. A call that came in the moment in which the library closed
        is never handed to us and never ends by itself. A stream that a client holds open has nothing more to bring.
        """
        self.refuse()
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._in_flight.idle(timeout), self._loop).result()
        self._grace = min(timeout, _FLUSH_SECONDS)
        self.stop()
        return True

    def stop(self) -> None:
        """Close every connection and end the thread. Twice is once."""
        self.refuse()
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the address could not be had: the loop is closed by now
                self._loop.call_soon_threadsafe(self._finish)
            self._thread.join()

    def _finish(self) -> None:
        self._stop.set()
        self._go.set()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            if self._serving.done():
                raise
            for future in (self._port, self._serving):
                if not future.done():
                    future.set_exception(error)
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        with Pools("grpc") as pools, LoopReader(self._loop):
            health_servicer = await _health()
            transport = self._transport = self._make_transport(pools, health_servicer)
            self._port.set_result(transport.bind())
            await self._go.wait()
            if not self._stop.is_set():
                await transport.start()
                self._serving.set_result(None)
            await self._stop.wait()
            await health_servicer.enter_graceful_shutdown()
            await transport.stop(self._grace)

    def _make_transport(self, pools: Pools, health_servicer: health.aio.HealthServicer) -> Http2Transport:
        service = self._service = self._make_service(pools)
        dispatcher = Dispatcher(
            self._loop,
            service,
            _collected(health_servicer),
            guards=self._guards,
            max_message=self._options.max_message_bytes,
            compression=self._options.compression_level(),
            reserve=self._reserve,
        )
        return Http2Transport(self._options, dispatcher, pools, self._tls_handshakes, self._tls)


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
