"""The ways in of ``repoagent serve``: the front ends that its options ask for, what they share, and the ready file."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final, Protocol

from repoagent.atomic_file import replace_file
from repoagent.errors import UnavailableError
from repoagent.server.exposition.agents import AgentMetrics
from repoagent.server.exposition.page import Machine, Source, page_text
from repoagent.serving.core import ServingCore
from repoagent_server.access import Access
from repoagent_server.access.access import Denials
from repoagent_server.handlers.shared_memory import Regions
from repoagent_server.http.api import api_service, metrics_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend
from repoagent_server.http.hosting.sagemaker import sagemaker_service
from repoagent_server.http.hosting.vertex import vertex_service
from repoagent_server.http.reader import Limits
from repoagent_server.program.options import ServeOptions
from repoagent_server.shared.connections import InFlight
from repoagent_server.shared.request_log import RequestLog
from repoagent_server.shared.reserve import Reserve
from repoagent_server.tls.certificates import CertificateMetrics, HeldCertificates, TlsFiles

_HTTP: Final = "HTTPService"
_METRICS: Final = "Metrics Service"
_GRPC: Final = "GRPCInferenceService"
_SAGEMAKER: Final = "Sagemaker HTTPService"
_VERTEX: Final = "Vertex AI HTTPService"
READY_NAMES: Final = {
    _HTTP: "http",
    _GRPC: "grpc",
    _METRICS: "metrics",
    _SAGEMAKER: "sagemaker",
    _VERTEX: "vertex-ai",
}
"""The names of the ways in in the ready file, in metrics and in flags."""


@contextmanager
def naming_the_flag(name: str) -> Iterator[None]:
    """Add to the error of an address that cannot be had which flag has the port of the way in ``name``."""
    try:
        yield
    except UnavailableError as error:
        raise UnavailableError(f"{error} (--{READY_NAMES[name]}-port)") from error


class FrontEnd(Protocol):
    """What the program does with each of its ways in."""

    @property
    def certificate_end(self) -> float | None: ...

    def bind(self) -> tuple[str, int]: ...

    def start(self) -> None: ...

    def turn(self) -> None: ...

    def on_loop(self, call: Callable[[InFlight], object]) -> None: ...

    def part(self, timeout: float) -> None: ...

    def refuse(self) -> None: ...

    def drain(self, timeout: float) -> bool: ...

    def stop(self) -> None: ...


def front_ends(
    options: ServeOptions,
    core: ServingCore,
    regions: Regions,
    access: Access | None,
    request_log: RequestLog | None,
    denials: Denials,
    page: Callable[[], str] | None,
    tls: Mapping[str, HeldCertificates],
) -> dict[str, FrontEnd]:
    """Every way in that ``options`` ask for, not bound yet. ``page`` gives the metrics, ``tls`` has what each of
    :func:`tls_files` is served with."""
    fronts: dict[str, FrontEnd] = {}
    limits, reserve = Limits(max_body=options.http_max_input_size), Reserve(options.limits.held_bytes)
    api = partial(
        api_service,
        core,
        allow_load_parameters=options.allow_load_parameters,
        metrics=page,
        max_input_size=options.http_max_input_size,
        restrictions=options.http_restrictions,
        forward_headers=options.http_header_forward_pattern,
        regions=regions,
        limits=options.limits,
        openai=options.allow_openai,
        ui=options.allow_ui,
        explicit=options.model_control_mode.lower() == "explicit",
        access=access,
        request_log=request_log,
        denials=denials,
        reserve=reserve,
    )
    if options.allow_http:
        endpoint = _endpoint(options, options.http_address, options.http_port, limits, tls.get(_HTTP))
        fronts[_HTTP] = HttpFrontend(endpoint, api())
    hosting = partial(Endpoint, options.http_address, limits=limits, allowed_hosts=options.http_allowed_host)
    if options.sagemaker is not None:
        endpoint = hosting(options.sagemaker.port)
        fronts[_SAGEMAKER] = HttpFrontend(endpoint, sagemaker_service(options.sagemaker, core, api))
    if options.vertex is not None:
        endpoint = hosting(options.vertex.port)
        fronts[_VERTEX] = HttpFrontend(endpoint, vertex_service(options.vertex, core, api))
    if options.allow_grpc:
        # Imported here: a server without gRPC need not hold its library in memory.
        from repoagent_server.grpc.frontend import GrpcFrontend

        fronts[_GRPC] = GrpcFrontend(
            core,
            options.grpc,
            allow_load_parameters=options.allow_load_parameters,
            restrictions=options.grpc_restrictions,
            regions=regions,
            limits=options.limits,
            access=access,
            request_log=request_log,
            denials=denials,
            reserve=reserve,
            tls=tls.get(_GRPC),
        )
    if page is not None:
        address = options.metrics_address or options.http_address
        endpoint = _endpoint(options, address, options.metrics_port, limits, tls.get(_METRICS))
        fronts[_METRICS] = HttpFrontend(endpoint, metrics_service(page, access, request_log, denials, reserve))
    return fronts


def _endpoint(options: ServeOptions, address: str, port: int, limits: Limits, tls: HeldCertificates | None) -> Endpoint:
    hosts, handshakes = options.http_allowed_host, options.limits.tls_handshakes
    return Endpoint(address, port, options.reuse_http_port, limits, hosts, tls, handshakes)


def tls_files(options: ServeOptions) -> dict[str, TlsFiles]:
    """The files of each way in with TLS, by the names of :func:`front_ends`."""
    tls, grpc = options.http_tls, options.grpc
    found = {
        _HTTP: tls.http if options.allow_http else None,
        _METRICS: tls.metrics if options.allow_metrics else None,
        _GRPC: grpc.tls_files() if options.allow_grpc and (grpc.use_ssl or grpc.use_mutual_auth) else None,
    }
    return {name: files for name, files in found.items() if files is not None}


def ports(options: ServeOptions) -> dict[str, tuple[str, int, bool]]:
    """Address and port of each way in that ``options`` ask for, and whether other servers may listen there, too; by the
    names of :func:`front_ends`."""
    metrics_address, reuse = options.metrics_address or options.http_address, options.reuse_http_port
    found = {
        _HTTP: (options.http_address, options.http_port, reuse) if options.allow_http else None,
        _SAGEMAKER: (options.http_address, options.sagemaker.port, False) if options.sagemaker is not None else None,
        _VERTEX: (options.http_address, options.vertex.port, False) if options.vertex is not None else None,
        _GRPC: (options.grpc.address, options.grpc.port, options.grpc.reuse_port) if options.allow_grpc else None,
        _METRICS: (metrics_address, options.metrics_port, reuse) if options.allow_metrics else None,
    }
    return {name: one for name, one in found.items() if one is not None}


def with_ports(options: ServeOptions, taken: Mapping[str, int]) -> ServeOptions:
    """``options`` with the ports that were taken for those that were left open."""

    def port(name: str, chosen: int) -> int:
        return taken.get(name, chosen)

    sagemaker, vertex = options.sagemaker, options.vertex
    return replace(
        options,
        http_port=port(_HTTP, options.http_port),
        metrics_port=port(_METRICS, options.metrics_port),
        grpc=replace(options.grpc, port=port(_GRPC, options.grpc.port)),
        sagemaker=None if sagemaker is None else replace(sagemaker, port=port(_SAGEMAKER, sagemaker.port)),
        vertex=None if vertex is None else replace(vertex, port=port(_VERTEX, vertex.port)),
    )


def metrics_page(
    options: ServeOptions, core: ServingCore, sources: Sequence[Source], *, models: bool = True, server: bool = True
) -> Callable[[], str] | None:
    """What gives the text of the metrics page, of which ``sources`` are part; None where there is to be none.

    ``models``: numbers of requests are part of it. ``server``: so are those of agents and of the machine.
    """
    if not options.allow_metrics:
        return None
    agents = AgentMetrics()
    if server:
        core.observe(agents, "repoagent-server-metrics")
    shown = [agents, *sources, *([Machine()] if server and options.allow_cpu_metrics else [])]
    return lambda: page_text(core.metrics() if models else [], shown, options.metrics)


def certificate_metrics(fronts: Mapping[str, FrontEnd]) -> CertificateMetrics:
    """Those of the certificates of ``fronts``, which may be filled later."""
    return CertificateMetrics(lambda: {READY_NAMES[name]: front for name, front in fronts.items()})


@contextmanager
def request_log(path: Path | None) -> Iterator[RequestLog | None]:
    """The log of requests that ``--request-log`` asks for."""
    if path is None:
        yield None
        return
    log = RequestLog(None if str(path) == "-" else path)
    try:
        yield log
    finally:
        log.close()


def clear_ready_file(path: Path) -> None:
    """Remove what an earlier server left there, so that no one takes it for this one's.

    Raises:
        UnavailableError: the file will not be there when it is time, for it cannot be written.
    """
    with _faults(path), NamedTemporaryFile(dir=path.parent):
        path.unlink(missing_ok=True)


def write_ready_file(path: Path, addresses: Mapping[str, tuple[str, int]]) -> None:
    """Write ``{"pid": ..., "http": {"address": ..., "port": ...}, ...}``; the file appears whole or not at all.

    Raises:
        UnavailableError: it cannot be written.
    """
    document = {"pid": os.getpid(), **{name: {"address": a, "port": p} for name, (a, p) in addresses.items()}}
    with _faults(path):
        replace_file(path, json.dumps(document).encode() + b"\n")


@contextmanager
def _faults(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnavailableError(f"cannot write the ready file {path}: {error.strerror}") from error
