"""The options of ``repoagent serve``."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import click

from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.server.exposition.settings import MetricsSettings
from repoagent.serving.scheduling.rate_limiter import RateLimiterResource
from repoagent.serving.tracing.trace_settings import TraceSettings
from repoagent_server.flags.http_tls_flags import HttpTls
from repoagent_server.handlers.restrictions import Api, Restrictions
from repoagent_server.http.hosting.sagemaker import SageMakerOptions
from repoagent_server.http.hosting.vertex import VertexOptions
from repoagent_server.http.origins import is_loopback
from repoagent_server.shared.audit_options import AuditOptions
from repoagent_server.shared.grpc_options import GrpcOptions

__all__ = ["LogOptions", "ServeOptions", "open_ports"]


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What is logged, and how a line begins."""

    verbose: int = 0
    info: bool = True
    warning: bool = True
    error: bool = True
    format: str = "default"
    """One of ``repoagent.server.logs.FORMATS``."""
    file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The flags, by name; their help texts say what they mean."""

    model_repository: tuple[str, ...]
    model_control_mode: str = "none"
    load_model: tuple[str, ...] = ()
    repository_poll_secs: int = 15
    repository_timeout: int = 15
    exit_on_error: bool = True
    strict_readiness: bool = True
    strict_model_config: bool = False
    model_config_name: str | None = None
    model_namespacing: bool = False
    model_load_thread_count: int = 4
    model_load_retry_count: int = 0
    model_load_on_demand: bool = False
    model_memory_budget_bytes: int = 0
    unload_idle_after: int = 0
    exit_timeout_secs: int = 30
    drain_delay: int = 0
    ready_models: tuple[str, ...] = ()
    allow_config_variables: tuple[str, ...] = ()
    repoagent_directory: Path | None = None
    repoagents_from_directory: tuple[str, ...] = ()
    agent_policy: Path | None = None
    access: Path | None = None
    workspace_directory: Path | None = None
    cache_directory: Path | None = None
    cache_quota_bytes: int = 0
    allow_swap: bool = False
    allow_core_dumps: bool = False
    confidential_directory: Path | None = None
    allow_exec_keys: bool = False
    backend_config: dict[str, dict[str, str]] = field(default_factory=dict)
    cache_config: dict[str, dict[str, str]] = field(default_factory=dict)
    rate_limit: str = "off"
    rate_limit_resource: tuple[RateLimiterResource, ...] = ()
    trace: TraceSettings = field(default_factory=TraceSettings)
    server_id: str = "triton"
    allow_http: bool = True
    http_address: str = "127.0.0.1"
    http_port: int = 8000
    reuse_http_port: bool = False
    http_thread_count: int = 8
    http_max_input_size: int = 1 << 26
    http_allowed_host: tuple[str, ...] = ()
    http_header_forward_pattern: str = ""
    http_restrictions: Restrictions = field(default_factory=dict)
    http_tls: HttpTls = field(default_factory=HttpTls)
    allow_openai: bool = False
    allow_ui: bool = False
    allow_grpc: bool = True
    grpc: GrpcOptions = field(default_factory=GrpcOptions)
    grpc_restrictions: Restrictions = field(default_factory=dict)
    sagemaker: SageMakerOptions | None = None
    vertex: VertexOptions | None = None
    allow_metrics: bool = True
    allow_cpu_metrics: bool = True
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    metrics_address: str | None = None
    metrics_port: int = 8002
    allow_open: bool = False
    allow_load_parameters: bool = False
    allow_client_shm: bool = False
    limits: Limits = DEFAULT_LIMITS
    ready_file: Path | None = None
    log: LogOptions = field(default_factory=LogOptions)
    audit: AuditOptions = field(default_factory=AuditOptions)
    request_log: Path | None = None
    """``-`` is the standard error."""
    notes: tuple[str, ...] = ()
    """What to say of the command line in the log."""
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
        if "*" in self.load_model and len(self.load_model) > 1:
            raise click.UsageError("--load-model=* loads every model; do not name others beside it")
        self._check_ports()

    def _check_ports(self) -> None:
        """Refuse two endpoints at one port, and one outside the range that SageMaker leaves."""
        ports = list(self._ports())
        for (flag, address, port), (other, other_address, other_port) in combinations(ports, 2):
            if (address, port) == (other_address, other_port) and port:
                raise click.UsageError(f"{flag} and {other} are both {port}; give them different ports")
        if self.sagemaker is not None and self.sagemaker.safe_ports is not None:
            low, high = self.sagemaker.safe_ports
            for flag, _, port in ports:
                if flag != "--sagemaker-port" and not low <= port <= high:
                    raise click.UsageError(f"{flag} is {port}; --sagemaker-safe-port-range allows {low} to {high}")

    def _ports(self) -> Iterator[tuple[str, str, int]]:
        """Flag, address and port of each endpoint that is served."""
        if self.allow_http:
            yield "--http-port", self.http_address, self.http_port
        if self.allow_grpc:
            yield "--grpc-port", self.grpc.address, self.grpc.port
        if self.allow_metrics:
            yield "--metrics-port", self.metrics_address or self.http_address, self.metrics_port
        if self.sagemaker is not None:
            yield "--sagemaker-port", self.http_address, self.sagemaker.port
        if self.vertex is not None:
            yield "--vertex-ai-port", self.http_address, self.vertex.port


def open_ports(options: ServeOptions) -> list[str]:
    """Why the server must not start unless the operator accepts it; a line for each such port, none if all is well.

    A port is open if other machines reach it, clients may load and unload through it, and need nothing for that:
    neither a key (``--access``) nor a certificate nor the header of a restricted repository.
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
    local = address.startswith(("unix:", "unix-abstract:")) or is_loopback(address.removeprefix("[").removesuffix("]"))
    if local or Api.MODEL_REPOSITORY in restrictions:
        return
    yield (
        f"--{kind}-address={address}: anyone who reaches the port can load and unload models. Give clients keys and "
        f"rights (--access=FILE), require certificates (--{kind}-use-ssl-mutual) or a header "
        f"(--{kind}-{flag}=model-repository:KEY=VALUE), or accept it with --allow-open"
    )
