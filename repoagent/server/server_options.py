"""The settings of a server, under the names and with the defaults of Triton's ``tritonserver.Options``."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from repoagent.audit import NO_AUDIT, Audit
from repoagent.errors import InvalidArgumentError, UnsupportedError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.loader.attesting import AttestSettings
from repoagent.loader.converting.environments import ConverterSettings
from repoagent.loader.load_context import Progress
from repoagent.server.enums import InstanceGroupKind, LogFormat, LogLevel, ModelControlMode, RateLimitMode
from repoagent.server.exposition.page import MetricsSettings, read_metrics_settings
from repoagent.serving.assembly import ControlMode, CoreOptions
from repoagent.serving.assembly import RateLimitMode as CoreRateLimitMode
from repoagent.serving.scheduling.rate_limiter import RateLimiterResource

_SHOWN: Final = (str, int, float, bool, type(None))
"""Types whose values a message can show: others may be long, or have secrets in them."""
_NOT_NEGATIVE: Final = (
    "exit_timeout",
    "drain_timeout",
    "model_load_thread_count",
    "model_load_retry_count",
    "memory_budget",
    "agent_cache_quota",
    "log_verbose",
)


def check_types(options: Any) -> None:
    """Refuse values that can never work.

    Raises:
        TypeError: a field has a value of another type than its own.
    """
    hints = get_type_hints(type(options))
    for item in fields(options):
        value, hint = getattr(options, item.name), hints[item.name]
        if not _fits(value, hint):
            shown = f": {value!r}" if isinstance(value, _SHOWN) else ""
            raise TypeError(f"Options.{item.name} must be {_text(hint)}, not {type(value).__name__}{shown}")


def check_ranges(options: Any) -> None:
    """Refuse numbers that mean nothing.

    Raises:
        InvalidArgumentError: a number is too small.
    """
    for name in _NOT_NEGATIVE:
        value = getattr(options, name)
        if value is not None and value < 0:
            raise InvalidArgumentError(f"Options.{name} must be at least 0, not {value}")
    for name in ("poll_interval", "repository_timeout"):
        if not (seconds := getattr(options, name)) > 0:
            raise InvalidArgumentError(f"Options.{name} must be a positive number of seconds, not {seconds}")


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in (Any, object):
        return True
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in arguments)
    if origin in (list, tuple, Sequence):
        return (
            isinstance(value, Sequence)
            and not isinstance(value, str | bytes)
            and all(_fits(item, arguments[0]) for item in value)
        )
    if origin in (dict, Mapping):
        key, item = arguments
        return isinstance(value, Mapping) and all(_fits(k, key) and _fits(v, item) for k, v in value.items())
    if origin is Callable:
        return callable(value)
    return isinstance(value, (int, float) if hint is float else hint)


def _text(hint: Any) -> str:
    """``list[str]``: a type as a program would write it."""
    return (
        hint.__name__
        if isinstance(hint, type) and not get_args(hint)
        else re.sub(r"(?<!\w)(?:\w++\.)++", "", str(hint))
    )


_RATE_LIMITS: Final = {
    RateLimitMode.OFF: CoreRateLimitMode.OFF,
    RateLimitMode.EXEC_COUNT: CoreRateLimitMode.EXECUTION_COUNT,
}
_HOST_POLICIES: Final = ("numa-node", "cpu-cores")


@dataclass(slots=True)
class ModelLoadDeviceLimit:
    """No model is loaded onto ``device`` once ``fraction`` of its memory is in use. For GPUs only."""

    kind: InstanceGroupKind
    device: int
    fraction: float


@dataclass(slots=True)
class Options:
    """The options of a :class:`~repoagent.server.Server`. Times are seconds unless the name has another unit.

    The keyword-only fields at the end are this project's own. Which of the others have no effect here, and why, is in
    ``docs/reference/server-api.md``.
    """

    model_repository: str | Path | Sequence[str | Path] | None = field(default_factory=list)
    """A directory or URL, or several."""
    server_id: str = "triton"
    model_control_mode: ModelControlMode = ModelControlMode.NONE
    startup_models: list[str] = field(default_factory=list)
    """EXPLICIT only: what to load at the start; ``"*"`` is everything."""
    strict_model_config: bool = False
    rate_limiter_mode: RateLimitMode = RateLimitMode.OFF
    rate_limiter_resources: list[RateLimiterResource] = field(default_factory=list)
    pinned_memory_pool_size: int = 1 << 28
    cuda_memory_pool_sizes: dict[int, int] = field(default_factory=dict)
    cache_config: dict[str, dict[str, Any]] = field(default_factory=dict)
    cache_directory: str = "/opt/tritonserver/caches"
    min_supported_compute_capability: float = 6.0
    exit_on_error: bool = True
    strict_readiness: bool = True
    exit_timeout: int = 30
    buffer_manager_thread_count: int = 0
    model_load_thread_count: int = 4
    model_load_retry_count: int = 0
    model_namespacing: bool = False
    enable_peer_access: bool = True
    log_file: str | None = None
    log_info: bool = False
    log_warn: bool = False
    log_error: bool = False
    log_format: LogFormat = LogFormat.DEFAULT
    log_verbose: int = 0
    metrics: bool = True
    gpu_metrics: bool = True
    cpu_metrics: bool = True
    metrics_interval: int = 2000
    """Milliseconds."""
    backend_directory: str = "/opt/tritonserver/backends"
    repo_agent_directory: str = "/opt/tritonserver/repoagents"
    model_load_device_limits: list[ModelLoadDeviceLimit] = field(default_factory=list)
    backend_configuration: dict[str, dict[str, str]] = field(default_factory=dict)
    host_policies: dict[str, dict[str, str]] = field(default_factory=dict)
    metrics_configuration: dict[str, dict[str, str]] = field(default_factory=dict)

    log_callback: Callable[[LogLevel, str, int, int, str], None] | None = field(default=None, kw_only=True)
    """Gets each record of the levels that are on, instead of a line: level, file name, line, microseconds since 1970
    and message. As in Triton it is that of the process: each start of a server sets it, or takes it away."""
    progress_callback: Callable[[Progress], None] | None = field(default=None, kw_only=True)
    """Called with the progress of downloads and agents, on the thread that works: keep it quick."""
    poll_interval: float = field(default=15, kw_only=True)
    """POLL only: how often the repositories are looked at."""
    drain_timeout: float = field(default=30, kw_only=True)
    """How long an unload waits for running requests."""
    on_demand: bool = field(default=False, kw_only=True)
    """EXPLICIT only: load a model of the repositories when the first request for it comes."""
    memory_budget: int | None = field(default=None, kw_only=True)
    """EXPLICIT only: bytes of model files that may be loaded on demand before those used least lately are unloaded."""
    model_config_name: str | None = field(default=None, kw_only=True)
    """Read ``configs/NAME.pbtxt`` of a model, where there is one, instead of ``config.pbtxt``."""
    repository_timeout: float = field(default=15, kw_only=True)
    """How long a remote repository has to answer a question, and for how long a download may be silent."""
    storage_options: Mapping[str, object] | None = field(default=None, kw_only=True)
    """Passed to the filesystems of remote repositories."""
    workspace_directory: str | None = field(default=None, kw_only=True)
    """Where agents get their private directories."""
    agent_cache_directory: str | None = field(default=None, kw_only=True)
    """Where agents and downloads keep what can be used again."""
    agent_cache_quota: int | None = field(default=None, kw_only=True)
    """Bytes."""
    allow_swap: bool = field(default=False, kw_only=True)
    """Let confidential plaintext lie in memory although the machine may swap it to disk."""
    agent_policy: str | None = field(default=None, kw_only=True)
    """The operator's policy file: what every model is held to, whatever its own configuration has."""
    allow_exec_keys: bool = field(default=False, kw_only=True)
    """Let ``exec:`` key references of models run programs as the server."""
    converters: ConverterSettings = field(default_factory=ConverterSettings, kw_only=True)
    """The environments of converters, and whether sources that are code may be opened."""
    limits: Limits = field(default=DEFAULT_LIMITS, kw_only=True)
    """What one model, file or request may take."""
    audit: Audit = field(default=NO_AUDIT, kw_only=True)
    """Gets what happens to models: a :class:`repoagent.audit.log.AuditLog`, which its owner closes."""
    attest: AttestSettings | None = field(default=None, kw_only=True)
    """With it, every load leaves a signed receipt; needs the package ``repoagent-attest``."""


def metrics_settings(options: Options) -> MetricsSettings:
    """Which latencies the metrics show.

    Raises:
        InvalidArgumentError: ``metrics_configuration`` has a name or a value that is not known.
    """
    known = dict(options.metrics_configuration)
    settings = read_metrics_settings(known.pop("", {}))
    if known:
        raise InvalidArgumentError(f"metrics_configuration: there is nothing named '{next(iter(known))}' to configure")
    return settings


def core_options(options: Options) -> CoreOptions:
    """These options in the form of the serving core.

    Raises:
        TypeError: a value has the wrong type.
        InvalidArgumentError: there is no model repository, or a number is not valid.
        UnsupportedError: an option asks for a feature that this server does not have.
    """
    check_types(options)
    if not options.model_repository:
        raise InvalidArgumentError("Model repository must be specified.")
    check_ranges(options)
    _refuse_unsupported(options)
    repositories = options.model_repository
    return CoreOptions(
        repositories=tuple(map(str, [repositories] if isinstance(repositories, str | Path) else repositories)),
        control_mode=ControlMode[options.model_control_mode.name],
        on_progress=options.progress_callback,
        poll_seconds=options.poll_interval,
        repository_timeout_seconds=options.repository_timeout,
        startup_models=tuple(options.startup_models),
        strict_model_config=options.strict_model_config,
        exit_on_error=options.exit_on_error,
        strict_readiness=options.strict_readiness,
        exit_timeout_seconds=options.exit_timeout,
        drain_timeout_seconds=options.drain_timeout,
        load_threads=options.model_load_thread_count,
        load_retry_count=options.model_load_retry_count,
        repoagent_directory=Path(options.repo_agent_directory),
        workspace_directory=_path(options.workspace_directory),
        cache_directory=_path(options.agent_cache_directory),
        cache_quota_bytes=options.agent_cache_quota,
        allow_swap=options.allow_swap,
        agent_policy=_path(options.agent_policy),
        allow_exec_keys=options.allow_exec_keys,
        converters=options.converters,
        limits=options.limits,
        model_namespacing=options.model_namespacing,
        on_demand=options.on_demand,
        memory_budget_bytes=options.memory_budget,
        model_config_name=options.model_config_name,
        cache_config=options.cache_config,
        latencies=metrics_settings(options).kept,
        rate_limit=_RATE_LIMITS[options.rate_limiter_mode],
        rate_limit_resources=tuple(options.rate_limiter_resources),
        server_id=options.server_id,
        backend_config=options.backend_configuration,
        storage_options=options.storage_options,
        audit=options.audit,
        attest=options.attest,
    )


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _refuse_unsupported(options: Options) -> None:
    for limit in options.model_load_device_limits:
        check_device_limit(limit.kind)
    for settings in options.host_policies.values():
        for setting in settings:
            check_host_policy(setting)


def check_device_limit(kind: InstanceGroupKind) -> None:
    """Only GPUs can have a limit.

    Raises:
        UnsupportedError: ``kind`` is another one.
    """
    if kind is not InstanceGroupKind.GPU:
        raise UnsupportedError(f"given device kind is not supported, got: KIND_{kind.name}")


def check_host_policy(setting: str) -> None:
    """Only what Triton knows can be set.

    Raises:
        UnsupportedError: ``setting`` is something else.
    """
    if setting not in _HOST_POLICIES:
        raise UnsupportedError(
            f"Unsupported host policy setting '{setting}' is specified, supported settings are 'numa-node', 'cpu-cores'"
        )
