"""The ways in of ``repoagent serve``: the front ends that its options ask for, what they share, and the ready file."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Protocol

from repoagent.atomic_file import replace_file
from repoagent.errors import UnavailableError
from repoagent.server.exposition.agents import AgentMetrics
from repoagent.server.exposition.page import Machine, Source, page_text
from repoagent.serving.core import ServingCore
from repoagent_server.access import Access
from repoagent_server.access.access import Denials
from repoagent_server.handlers.inference import Served
from repoagent_server.handlers.shared_memory import Regions
from repoagent_server.http.api import api_service, metrics_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend
from repoagent_server.http.hosting.sagemaker import sagemaker_service
from repoagent_server.http.hosting.vertex import vertex_service
from repoagent_server.http.reader import Limits
from repoagent_server.http.service import ServiceFactory
from repoagent_server.program.options import (
    GRPC,
    HTTP,
    METRICS,
    READY_NAMES,
    SAGEMAKER,
    VERTEX,
    ServeOptions,
    port_flag,
)
from repoagent_server.shared.connections import InFlight
from repoagent_server.shared.request_log import RequestLog
from repoagent_server.tls.certificates import CertificateMetrics, HeldCertificates, TlsFiles


@contextmanager
def naming_the_flag(name: str) -> Iterator[None]:
    """Add to the error of an address that cannot be had which flag has the port of the way in ``name``."""
    try:
        yield
    except UnavailableError as error:
        raise UnavailableError(f"{error} ({port_flag(name)})") from error


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
    places = options.places()
    served = Served(
        core,
        regions=regions,
        limits=options.limits,
        access=access,
        request_log=request_log,
        denials=denials,
        allow_load_parameters=options.allow_load_parameters,
    )
    api = partial(
        api_service,
        served,
        metrics=page,
        max_input_size=options.http_max_input_size,
        restrictions=options.http_restrictions,
        forward_headers=options.http_header_forward_pattern,
        openai=options.allow_openai,
        ui=options.allow_ui,
        explicit=options.model_control_mode.lower() == "explicit",
    )

    def listening(name: str, service: ServiceFactory) -> HttpFrontend:
        limits, hosts = Limits(max_body=options.http_max_input_size), options.http_allowed_host
        handshakes = options.limits.tls_handshakes
        return HttpFrontend(Endpoint(*places[name], limits, hosts, tls.get(name), handshakes), service)

    if HTTP in places:
        fronts[HTTP] = listening(HTTP, api())
    if options.sagemaker is not None:
        fronts[SAGEMAKER] = listening(SAGEMAKER, sagemaker_service(options.sagemaker, core, api))
    if options.vertex is not None:
        fronts[VERTEX] = listening(VERTEX, vertex_service(options.vertex, core, api))
    if GRPC in places:
        # Imported here: a server without gRPC need not hold its library in memory.
        from repoagent_server.grpc.frontend import GrpcFrontend

        grpc, guarded = options.grpc, options.grpc_restrictions
        fronts[GRPC] = GrpcFrontend(served, grpc, restrictions=guarded, tls=tls.get(GRPC))
    if page is not None:
        fronts[METRICS] = listening(METRICS, metrics_service(page, access, request_log, denials, served.reserve))
    return fronts


def tls_files(options: ServeOptions) -> dict[str, TlsFiles]:
    """The files of each way in with TLS, by the names of :func:`front_ends`."""
    tls, grpc = options.http_tls, options.grpc
    found = {
        HTTP: tls.http if options.allow_http else None,
        METRICS: tls.metrics if options.allow_metrics else None,
        GRPC: grpc.tls_files() if options.allow_grpc and (grpc.use_ssl or grpc.use_mutual_auth) else None,
    }
    return {name: files for name, files in found.items() if files is not None}


def with_ports(options: ServeOptions, taken: Mapping[str, int]) -> ServeOptions:
    """``options`` with the ports that were taken for those that were left open."""
    port, grpc = taken.get, replace(options.grpc, port=taken.get(GRPC, options.grpc.port))
    sagemaker, vertex = options.sagemaker, options.vertex
    return replace(
        options,
        http_port=port(HTTP, options.http_port),
        metrics_port=port(METRICS, options.metrics_port),
        grpc=grpc,
        sagemaker=None if sagemaker is None else replace(sagemaker, port=port(SAGEMAKER, sagemaker.port)),
        vertex=None if vertex is None else replace(vertex, port=port(VERTEX, vertex.port)),
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
