"""Front ends over a running in-process server, under the names of Triton's ``tritonfrontend`` package::

    from repoagent_server import KServeHttp

    with KServeHttp(server, KServeHttp.Options(port=8000)):
        ...

They listen on 127.0.0.1 unless configured otherwise, where ``tritonfrontend`` listens on every address.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final
from weakref import WeakKeyDictionary

from repoagent.errors import AlreadyExistsError, InvalidArgumentError
from repoagent.server import ModelControlMode, Server
from repoagent.server.logs import server_log
from repoagent.server.server_options import check_types
from repoagent_server.access import Access
from repoagent_server.handlers.inference import Served
from repoagent_server.handlers.shared_memory import NO_REGIONS, Regions
from repoagent_server.http.api import api_service, metrics_service
from repoagent_server.http.asgi import AsgiApp
from repoagent_server.http.body import DEFAULT_MAX_BODY
from repoagent_server.http.frontend import Endpoint, HttpFrontend
from repoagent_server.program.logs import LOGGER
from repoagent_server.shared.grpc_options import COMPRESSION_LEVELS, GrpcCompressionLevel, GrpcOptions
from repoagent_server.shared.reserve import Reserve
from repoagent_server.tls.certificates import Certificates, TlsFiles

if TYPE_CHECKING:
    from repoagent_server.grpc.frontend import GrpcFrontend

_LAST_PORT: Final = 65535
_MOST: Final = (1 << 31) - 1
"""The largest number that gRPC, and Triton with it, takes for a setting."""
_DRAIN_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class _HttpOptions:
    """``thread_count`` is taken for compatibility: one event loop serves HTTP. Port 0 takes a free one."""

    address: str = "127.0.0.1"
    port: int = 8000
    reuse_port: bool = False
    thread_count: int = 8
    header_forward_pattern: str = ""
    allow_client_shm: bool = False
    """Let clients register POSIX shared memory. A region is known to all front ends of the server that let them."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names of the server, as ``--http-allowed-host``."""
    allow_openai: bool = False
    """Serve OpenAI's API, as ``--allow-openai``."""
    allow_ui: bool = False
    """Serve a page for people, as ``--allow-ui``."""
    use_ssl: bool = False
    """TLS, with the next four as in the options of :class:`KServeGrpc`. Files that change are read again."""
    server_cert: str = ""
    server_key: str = ""
    root_cert: str = ""
    use_mutual_auth: bool = False

    def __post_init__(self) -> None:
        _check_options(self)
        _check(self.thread_count > 0, f"thread_count must be above 0, not {self.thread_count}")


@dataclass(frozen=True, slots=True)
class _MetricsOptions:
    address: str = "127.0.0.1"
    port: int = 8002
    thread_count: int = 1

    def __post_init__(self) -> None:
        _check_options(self)
        _check(self.thread_count > 0, f"thread_count must be above 0, not {self.thread_count}")


@dataclass(frozen=True, slots=True)
class _GrpcOptions(GrpcOptions):
    """Pool sizes and thread counts are taken for compatibility: one event loop serves gRPC."""

    infer_thread_count: int = 2
    infer_allocation_pool_size: int = 8
    max_response_pool_size: int = 2_147_483_647
    allow_client_shm: bool = False
    """As of :class:`KServeHttp`."""

    def __post_init__(self) -> None:
        _check_options(self, unlimited="max_message_bytes")
        level = self.infer_compression_level
        good = level in COMPRESSION_LEVELS or level in range(GrpcCompressionLevel.COUNT)
        _check(
            good,
            f"infer_compression_level must be one of {', '.join(COMPRESSION_LEVELS)} or its number (0 to "
            f"{GrpcCompressionLevel.COUNT - 1}), not {level!r}",
        )


class _Service:
    """Started and stopped by hand or as a context manager. Stopping lets running requests finish."""

    Options: ClassVar[Any]

    def __init__(self, server: Server, options: Any = None, *, access: Access | None = None) -> None:
        """``access``: who may do what; None lets everybody do everything that the options allow."""
        options = self.Options() if options is None else options
        if not isinstance(options, self.Options):
            raise InvalidArgumentError(
                f"Incorrect type for options. options argument must be of type {type(self).__name__}.Options"
            )
        self._server = server
        self._access = access
        self._options = options
        self._front: HttpFrontend | GrpcFrontend | None = None

    def __enter__(self) -> Any:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens.

        Raises:
            InvalidArgumentError: it is not started.
        """
        if self._front is None:
            raise InvalidArgumentError("server is not running.")
        return self._front.bind()

    def start(self) -> None:
        """Listen, and serve.

        Raises:
            AlreadyExistsError: it does already.
            InvalidArgumentError: the in-process server is not started.
            UnavailableError: the address is in use.
        """
        if self._front is not None:
            raise AlreadyExistsError("server is already running.")
        server_log().attach(LOGGER)
        front = self._make()
        try:
            front.start()
        except BaseException:
            front.stop()
            raise
        self._front = front

    def stop(self) -> None:
        """Refuse new requests, let running ones finish, close. Twice is once."""
        front, self._front = self._front, None
        if front is not None:
            front.drain(_DRAIN_SECONDS)
            front.stop()

    def _make(self) -> "HttpFrontend | GrpcFrontend":
        raise AssertionError("each kind makes its own")


class KServeHttp(_Service):
    """HTTP: KServe v2 with Triton's extensions."""

    Options = _HttpOptions

    def _make(self) -> "HttpFrontend | GrpcFrontend":
        options = self._options
        wants_tls = options.use_ssl or options.use_mutual_auth
        files = TlsFiles(
            "HTTP", options.server_cert, options.server_key, options.root_cert, options.use_mutual_auth, ("http/1.1",)
        )
        endpoint = Endpoint(
            options.address,
            options.port,
            options.reuse_port,
            allowed_hosts=options.allowed_hosts,
            tls=Certificates(files) if wants_tls else None,
            tls_handshakes=self._server.options.limits.tls_handshakes,
        )
        service = api_service(
            _served(self._server, self._access, allow_client_shm=options.allow_client_shm),
            metrics=self._server.metrics,
            forward_headers=options.header_forward_pattern,
            openai=options.allow_openai,
            ui=options.allow_ui,
            explicit=self._server.options.model_control_mode is ModelControlMode.EXPLICIT,
        )
        return HttpFrontend(endpoint, service)


class KServeGrpc(_Service):
    """gRPC: ``inference.GRPCInferenceService`` with health and reflection."""

    Grpc_compression_level = GrpcCompressionLevel
    Options = _GrpcOptions

    def _make(self) -> "HttpFrontend | GrpcFrontend":
        from repoagent_server.grpc.frontend import GrpcFrontend

        served = _served(self._server, self._access, allow_client_shm=self._options.allow_client_shm)
        return GrpcFrontend(served, self._options)


class Metrics(_Service):
    """The metrics page for Prometheus."""

    Options = _MetricsOptions

    def _make(self) -> "HttpFrontend | GrpcFrontend":
        self._server.core  # noqa: B018 - refuses when the server is not started
        service = metrics_service(self._server.metrics, self._access, reserve=_reserve(self._server))
        return HttpFrontend(Endpoint(self._options.address, self._options.port), service)


def asgi_app(
    server: Server,
    *,
    allow_load_parameters: bool = False,
    max_body: int = DEFAULT_MAX_BODY,
    forward_headers: str = "",
    allow_client_shm: bool = False,
    allow_openai: bool = False,
    allow_ui: bool = False,
    access: Access | None = None,
) -> AsgiApp:
    """The HTTP API of a running server as an ASGI application, to mount in one of FastAPI or Starlette::

        with asgi_app(server) as models:
            app.mount("/models", models)

    Args:
        server: A started in-process server. Stop it after the application.
        allow_load_parameters: Whether load requests may bring a configuration and files.
        max_body: The largest body of a request, in bytes.
        forward_headers: Which headers of inference requests reach the model as parameters: a regular expression.
        allow_client_shm: Whether clients may register POSIX shared memory.
        allow_openai: Whether OpenAI's API is served, below ``/v1``.
        allow_ui: Whether there is a page for people, at ``/ui``.
        access: Who may do what; None lets everybody do everything.

    Raises:
        InvalidArgumentError: the in-process server is not started, or ``forward_headers`` is not a regular expression.
    """
    service = api_service(
        _served(server, access, allow_client_shm=allow_client_shm, allow_load_parameters=allow_load_parameters),
        metrics=server.metrics,
        max_input_size=max_body,
        forward_headers=forward_headers,
        openai=allow_openai,
        ui=allow_ui,
        explicit=server.options.model_control_mode is ModelControlMode.EXPLICIT,
    )
    return AsgiApp(service, max_body=max_body)


_shared: Final[MutableMapping[Server, Regions]] = WeakKeyDictionary()
_reserves: Final[MutableMapping[Server, Reserve]] = WeakKeyDictionary()


def _served(
    server: Server, access: Access | None, *, allow_client_shm: bool, allow_load_parameters: bool = False
) -> Served:
    """What front ends of ``server`` serve. Those with shared memory have the regions in common."""
    return Served(
        server.core,
        regions=_shared.setdefault(server, Regions(allowed=True)) if allow_client_shm else NO_REGIONS,
        limits=server.options.limits,
        access=access,
        reserve=_reserve(server),
        allow_load_parameters=allow_load_parameters,
    )


def _reserve(server: Server) -> Reserve:
    """That of all front ends of ``server``."""
    return _reserves.setdefault(server, Reserve(server.options.limits.held_bytes))


def _check_options(options: Any, *, unlimited: str = "") -> None:
    """Refuse wrong types, and numbers out of range; the field ``unlimited`` may be -1."""
    try:
        check_types(options)
    except TypeError as error:
        raise InvalidArgumentError(str(error)) from error
    for item in fields(options):
        value, least = getattr(options, item.name), -1 if item.name == unlimited else 0
        most = _LAST_PORT if item.name == "port" else _MOST
        good = not isinstance(value, int) or least <= value <= most
        _check(good, f"{item.name} must be from {least} to {most}, not {value}")


def _check(good: bool, message: str) -> None:
    if not good:
        raise InvalidArgumentError(message)
