"""The options of ``repoagent serve``: each setting, with its default, its bounds and its text."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Final, NamedTuple

import click

from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.loader.settings import AttestOptions, AuditOptions, LoaderSettings, setting
from repoagent.server.exposition.page import MetricsSettings
from repoagent.server.logs import FORMATS
from repoagent.serving.scheduling.rate_limiter import RateLimiterResource
from repoagent.serving.tracing.trace_settings import TraceSettings
from repoagent_server.flags.endpoint_flags import HttpTls
from repoagent_server.flags.values import HEADER_PATTERN, LEVEL, PROCESSES, RESOURCE
from repoagent_server.handlers.headers import Api, Restrictions
from repoagent_server.http.hosting.sagemaker import SageMakerOptions
from repoagent_server.http.hosting.vertex import VertexOptions
from repoagent_server.http.listener import is_unix
from repoagent_server.http.origins import is_loopback
from repoagent_server.shared.grpc_options import GrpcOptions

HTTP: Final = "HTTPService"
METRICS: Final = "Metrics Service"
GRPC: Final = "GRPCInferenceService"
SAGEMAKER: Final = "Sagemaker HTTPService"
VERTEX: Final = "Vertex AI HTTPService"
READY_NAMES: Final = {HTTP: "http", GRPC: "grpc", METRICS: "metrics", SAGEMAKER: "sagemaker", VERTEX: "vertex-ai"}
"""The names of the ways in in the ready file, in metrics and in flags."""


class Place(NamedTuple):
    """Where a way in listens. ``shared``: other servers may listen there, too."""

    address: str
    port: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What is logged, and how a line begins."""

    verbose: int = setting(
        0, "Level of detail; 0 for none, 'true' for 1.", "--log-verbose", kind=LEVEL, metavar="INTEGER"
    )
    info: bool = setting(True, "Log events.", "--log-info")
    warning: bool = setting(True, "Log warnings.", "--log-warning")
    error: bool = setting(True, "Log errors.", "--log-error")
    format: str = setting(
        "default",
        "How a line begins: 'I1121 10:00:00.123456', or '2026-11-21T10:00:00Z I'; or one JSON object per line.",
        "--log-format",
        kind=tuple(FORMATS),
    )
    file: Path | None = setting(None, "Log to this file instead of standard error.", "--log-file")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions(LoaderSettings):
    """What the operator sets. A field with a text is a flag, an environment variable and a key of ``--config-file``."""

    model_repository: tuple[str, ...] = setting(
        ..., "Model repository; repeat for more.", "--model-repository", "--model-store", metavar="PATH|URL"
    )
    model_control_mode: str = setting(
        "none",
        "none: load every model at the start, then change nothing. poll: follow changes in the repositories. "
        "explicit: load what --load-model names and what clients request.",
        kind=("none", "poll", "explicit"),
    )
    load_model: tuple[str, ...] = setting(
        (),
        "Model to load at the start, in explicit mode only; repeat for more, or use '*' alone for all.",
        metavar="NAME",
    )
    repository_poll_secs: int = setting(15, "Seconds between two polls of the repositories (poll mode).", least=1)
    exit_on_error: bool = setting(True, "Exit if a model cannot be loaded at the start.")
    strict_readiness: bool = setting(True, "Report 'ready' only while every model is ready.")
    strict_model_config: bool = False
    model_namespacing: bool = setting(False, "Let models in different repositories have the same name (see the docs).")
    model_load_thread_count: int = setting(4, "How many models are loaded at once.", least=1)
    model_load_retry_count: int = setting(0, "How often a load that failed in the backend is retried.", least=0)
    model_load_on_demand: bool = setting(
        False, "Load a model when the first request for it arrives; explicit mode only."
    )
    model_memory_budget_bytes: int = setting(
        0,
        "Bytes of model files that may be loaded on demand before the least recently used models are unloaded; "
        "0 means no limit.",
        least=0,
    )
    rate_limit: str = setting(
        "off",
        "Whether executions wait for the resources that instance groups name in 'rate_limiter'.",
        kind=("off", "execution_count"),
    )
    rate_limit_resource: tuple[RateLimiterResource, ...] = setting(
        (),
        "How much of a resource there is, on one device or on each; repeat for more. Without the flag, as much as "
        "the neediest instance needs.",
        kind=RESOURCE,
        metavar="NAME:COUNT[:DEVICE]",
    )
    unload_idle_after: int = setting(
        0,
        "Seconds without a request after which a model that was loaded on demand is unloaded; 0 means never.",
        least=0,
    )
    drain_delay: int = setting(
        0, "Seconds to keep serving after SIGTERM, while the server reports that it is not ready.", least=0
    )
    ready_models: tuple[str, ...] = setting(
        (),
        "A model that must be loaded for the server to be ready, instead of all; repeat for more.",
        metavar="MODEL",
    )
    exit_timeout_secs: int = setting(30, "Seconds to wait for running requests and agents at the end.", least=0)
    processes: int = setting(
        1,
        "Count of processes that serve, or 'auto' for one per core. Agents and keys stay in one more, see the docs.",
        kind=PROCESSES,
        metavar="N|auto",
    )
    worker_user: str | None = setting(
        None,
        "User of the processes that serve, for a server that is started as root; it reads what they are handed over.",
        metavar="NAME|UID",
    )
    repoagent_directory: Path | None = setting(
        Path("/opt/tritonserver/repoagents"), "Directory of agents that are not installed as packages."
    )
    repoagents_from_directory: tuple[str, ...] = ()
    access: Path | None = setting(None, "File with the clients, their keys and their rights.", metavar="FILE")
    allow_core_dumps: bool = setting(False, "Allow core dumps of a server that holds confidential plaintext.")
    backend_config: dict[str, dict[str, str]] = field(default_factory=dict)
    cache_config: dict[str, dict[str, str]] = field(default_factory=dict)
    trace: TraceSettings = field(default_factory=TraceSettings)
    server_id: str = setting("triton", "The name in the server's metadata.", "--server-id", "--id")
    allow_http: bool = setting(True, "Serve HTTP.")
    http_address: str = setting("127.0.0.1", "Address to listen on for HTTP.")
    http_port: int = setting(8000, "Port for HTTP; 0 takes a free one.", least=0, most=65535)
    reuse_http_port: bool = setting(
        False, "Let other servers listen on the same HTTP port.", "--reuse-http-port", "--reuse-port"
    )
    http_thread_count: int = setting(8, "Accepted, without effect: one event loop serves HTTP.", least=1)
    http_max_input_size: int = setting(1 << 26, "The largest body of a request, in bytes.", least=1)
    http_allowed_host: tuple[str, ...] = setting(
        (),
        "Another name under which browsers may reach the server, or '*' for any; repeat for more.",
        metavar="NAME",
    )
    allow_ui: bool = setting(False, "Serve a web page about the models over HTTP, at /ui.")
    allow_openai: bool = setting(False, "Serve OpenAI's API over HTTP, below /v1.")
    http_header_forward_pattern: str = setting(
        "", "Regular expression; headers whose names match it reach the model as parameters.", kind=HEADER_PATTERN
    )
    http_restrictions: Restrictions = field(default_factory=dict)
    http_tls: HttpTls = field(default_factory=HttpTls)
    allow_grpc: bool = setting(True, "Serve gRPC.")
    grpc: GrpcOptions = field(default_factory=GrpcOptions)
    grpc_restrictions: Restrictions = field(default_factory=dict)
    sagemaker: SageMakerOptions | None = None
    vertex: VertexOptions | None = None
    allow_metrics: bool = setting(True, "Serve metrics for Prometheus, on /metrics of both ports.")
    allow_cpu_metrics: bool = setting(True, "Include the machine's processors and memory in the metrics.")
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    metrics_address: str | None = setting(None, "Address to listen on for metrics.  [default: that of --http-address]")
    metrics_port: int = 8002
    allow_open: bool = setting(
        False,
        "Listen beyond this machine in explicit mode even if clients need no credential to load and unload models.",
    )
    allow_load_parameters: bool = setting(
        False,
        "Accept 'config' and 'file:' parameters in load requests: any client of the port can then replace models.",
    )
    allow_client_shm: bool = setting(
        False, "Let clients register POSIX shared memory of this machine, to pass tensors through it."
    )
    limits: Limits = DEFAULT_LIMITS
    ready_file: Path | None = setting(None, "File with the addresses in JSON, written once the server serves.")
    log: LogOptions = field(default_factory=LogOptions)
    audit: AuditOptions = field(default_factory=AuditOptions)
    attest: AttestOptions = field(default_factory=AttestOptions)
    request_log: Path | None = setting(
        None,
        "Write a line of JSON for each inference request to FILE, or to standard error for '-': client, model, "
        "version, status, milliseconds, bytes.",
        metavar="FILE",
    )
    notes: tuple[str, ...] = ()
    """Log lines about the command line."""
    warnings: tuple[str, ...] = ()
    """The same as warnings."""

    def check(self) -> None:
        """Refuse combinations that make no sense.

        Raises:
            click.UsageError: with what to change.
        """
        if self.load_model and self.model_control_mode.lower() != "explicit":
            raise click.UsageError("--load-model needs --model-control-mode=explicit")
        if self.model_load_on_demand and self.model_control_mode.lower() != "explicit":
            raise click.UsageError("--model-load-on-demand needs --model-control-mode=explicit")
        if self.model_memory_budget_bytes and not self.model_load_on_demand:
            raise click.UsageError("--model-memory-budget-bytes needs --model-load-on-demand")
        if self.unload_idle_after and not self.model_load_on_demand:
            raise click.UsageError("--unload-idle-after needs --model-load-on-demand")
        if self.audit.file is None and self.audit != AuditOptions(sync=self.audit.sync):
            raise click.UsageError("--audit-required, --audit-rotate-bytes and --audit-key need --audit-log")
        if self.attest.key is None and self.attest != AttestOptions():
            raise click.UsageError("--attest-directory, -required, -plaintext, -id and -header need --attest-key")
        if "*" in self.load_model and len(self.load_model) > 1:
            raise click.UsageError("--load-model=* loads every model; do not name others beside it")
        if self.processes == 1 and self.worker_user is not None:
            raise click.UsageError("--worker-user needs --processes above 1: one process has the keys, too")
        if self.processes > 1 and self.model_namespacing:
            raise click.UsageError(
                "--model-namespacing: not with --processes above 1, whose workers know a model by its name alone: two "
                "of one name would take each other's requests. Start a server for each repository"
            )
        self._check_ports()

    def _check_ports(self) -> None:
        """Refuse two endpoints at one port, and one outside the range that SageMaker leaves."""
        places = {port_flag(name): place for name, place in self.places().items()}
        for (flag, place), (other, other_place) in combinations(places.items(), 2):
            if place[:2] == other_place[:2] and place.port:
                raise click.UsageError(f"{flag} and {other} are both {place.port}; give them different ports")
        if self.sagemaker is not None and self.sagemaker.safe_ports is not None:
            low, high = self.sagemaker.safe_ports
            del places[port_flag(SAGEMAKER)]
            for flag, place in places.items():
                if not low <= place.port <= high:
                    raise click.UsageError(
                        f"{flag} is {place.port}; --sagemaker-safe-port-range allows {low} to {high}"
                    )

    def places(self) -> dict[str, Place]:
        """Where each way in that is wanted listens."""
        address, shared = self.http_address, self.reuse_http_port
        found = {
            HTTP: Place(address, self.http_port, shared) if self.allow_http else None,
            GRPC: Place(self.grpc.address, self.grpc.port, self.grpc.reuse_port) if self.allow_grpc else None,
            METRICS: Place(self.metrics_address or address, self.metrics_port, shared) if self.allow_metrics else None,
            SAGEMAKER: Place(address, self.sagemaker.port) if self.sagemaker is not None else None,
            VERTEX: Place(address, self.vertex.port) if self.vertex is not None else None,
        }
        return {name: place for name, place in found.items() if place is not None}


def port_flag(name: str) -> str:
    """The flag that has the port of a way in."""
    return f"--{READY_NAMES[name]}-port"


def open_ports(options: ServeOptions) -> list[str]:
    """Why the server must not start unless the operator accepts it; a line for each such port, none if all is well.

    A port is open if other machines reach it and clients may load and unload through it without a credential. That is
    a key (``--access``), a certificate, or the header of a restricted repository.
    """
    if options.access is not None or options.model_control_mode.lower() != "explicit":
        return []
    return list(_open_ports(options))


def _open_ports(options: ServeOptions) -> Iterator[str]:
    http, grpc = options.http_tls.http, options.grpc
    # Vertex AI's port has no TLS, and its redirects reach the whole API. SageMaker's routes do not.
    if options.vertex is not None or (options.allow_http and not (http is not None and http.mutual)):
        yield from _open("http", options.http_address, options.http_restrictions, "restricted-api")
    if options.allow_grpc and not grpc.use_mutual_auth:
        yield from _open("grpc", grpc.address, options.grpc_restrictions, "restricted-protocol")


def _open(kind: str, address: str, restrictions: Restrictions, flag: str) -> Iterator[str]:
    local = is_unix(address) or is_loopback(address.removeprefix("[").removesuffix("]"))
    if local or Api.MODEL_REPOSITORY in restrictions:
        return
    yield (
        f"--{kind}-address={address}: anyone who reaches the port can load and unload models. Give clients keys and "
        f"rights (--access=FILE), require certificates (--{kind}-use-ssl-mutual) or a header "
        f"(--{kind}-{flag}=model-repository:KEY=VALUE), or accept it with --allow-open"
    )
