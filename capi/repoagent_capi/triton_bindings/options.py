"""The settings of a server, one call each."""

from typing import Any

from repoagent.errors import InvalidArgumentError
from repoagent.nested_text import read_json
from repoagent.server.enums import InstanceGroupKind, LogFormat, LogLevel, ModelControlMode, RateLimitMode
from repoagent.server.logs import LogCallback, open_log_file, server_log
from repoagent.server.server_options import (
    ModelLoadDeviceLimit,
    Options,
    check_device_limit,
    check_host_policy,
)
from repoagent.serving.scheduling.rate_limiter import RateLimiterResource


class ServerOptions:
    """Collects :class:`~repoagent.server.Options`. The settings of the log act at once, on the whole process."""

    def __init__(self) -> None:
        self.options = Options()
        self.repositories: list[str] = []

    def to_options(self) -> Options:
        """What has been set so far."""
        self.options.model_repository = list(self.repositories)
        return self.options

    def set_server_id(self, server_id: str) -> None:
        """Name the server."""
        self.options.server_id = server_id

    def set_model_repository_path(self, path: str) -> None:
        """Add a repository."""
        self.repositories.append(path)

    def set_model_control_mode(self, mode: ModelControlMode) -> None:
        """Say who decides what is loaded."""
        self.options.model_control_mode = mode

    def set_startup_model(self, name: str) -> None:
        """Add a model to load at the start."""
        self.options.startup_models.append(name)

    def set_strict_model_config(self, strict: bool) -> None:
        """Complete nothing from the models' files."""
        self.options.strict_model_config = strict

    def set_model_config_name(self, name: str) -> None:
        """Use ``configs/NAME.pbtxt`` of the models that have it."""
        self.options.model_config_name = name

    def set_rate_limiter_mode(self, mode: RateLimitMode) -> None:
        """Limit executions by resources, or do not."""
        self.options.rate_limiter_mode = mode

    def add_rate_limiter_resource(self, name: str, count: int, device: int) -> None:
        """Add a resource; device -1 is one that all share."""
        self.options.rate_limiter_resources.append(RateLimiterResource(name, count, device))

    def set_pinned_memory_pool_byte_size(self, size: int) -> None:
        """Kept; nothing here allocates pinned memory."""
        self.options.pinned_memory_pool_size = size

    def set_cuda_memory_pool_byte_size(self, gpu_device: int, size: int) -> None:
        """Kept; nothing here allocates from such a pool."""
        self.options.cuda_memory_pool_sizes[gpu_device] = size

    def set_cuda_virtual_address_size(self, gpu_device: int, size: int) -> None:
        """Accepted; nothing here maps memory of a GPU."""

    def set_response_cache_byte_size(self, size: int) -> None:
        """The older form of :meth:`set_cache_config` for the cache called ``local``."""
        self.options.cache_config["local"] = {"size": size}

    def set_cache_config(self, name: str, config_json: str) -> None:
        """Configure a response cache.

        Raises:
            InvalidArgumentError: ``config_json`` is no JSON object.
        """
        try:
            settings: Any = read_json(config_json)
        except ValueError as error:
            raise InvalidArgumentError(f"the configuration of cache '{name}' is not valid JSON: {error}") from error
        if not isinstance(settings, dict):
            raise InvalidArgumentError(f"the configuration of cache '{name}' must be a JSON object")
        self.options.cache_config[name] = settings

    def set_cache_directory(self, directory: str) -> None:
        """Kept; caches of other makers are not loaded."""
        self.options.cache_directory = directory

    def set_min_supported_compute_capability(self, capability: float) -> None:
        """Kept; what a GPU must be able to do is TensorRT's decision."""
        self.options.min_supported_compute_capability = capability

    def set_exit_on_error(self, exit_on_error: bool) -> None:
        """Fail the start when a model does."""
        self.options.exit_on_error = exit_on_error

    def set_strict_readiness(self, strict: bool) -> None:
        """Be ready only while every model is."""
        self.options.strict_readiness = strict

    def set_exit_timeout(self, seconds: int) -> None:
        """Say how long a stop may take."""
        self.options.exit_timeout = seconds

    def set_buffer_manager_thread_count(self, count: int) -> None:
        """Kept; there is no such manager."""
        self.options.buffer_manager_thread_count = count

    def set_model_load_thread_count(self, count: int) -> None:
        """Say how many models are loaded at once."""
        self.options.model_load_thread_count = count

    def set_model_load_retry_count(self, count: int) -> None:
        """Say how often a load that failed is tried again."""
        self.options.model_load_retry_count = count

    def set_model_namespacing(self, enable: bool) -> None:
        """Let repositories have models of equal names."""
        self.options.model_namespacing = enable

    def set_enable_peer_access(self, enable: bool) -> None:
        """Kept; no memory is shared between GPUs."""
        self.options.enable_peer_access = enable

    def set_log_file(self, path: str) -> None:
        """Write the log to a file; an empty name is the standard error again.

        Raises:
            InvalidArgumentError: it cannot be opened.
        """
        open_log_file(path)
        self.options.log_file = path or None

    def set_log_callback(self, callback: LogCallback | None) -> None:
        """Hand records to ``callback`` instead of writing lines, from the start of the server on."""
        self.options.log_callback = callback

    def set_log_info(self, on: bool) -> None:
        """Write informational messages."""
        self.options.log_info = on
        server_log().enable(LogLevel.INFO, on)

    def set_log_warn(self, on: bool) -> None:
        """Write warnings."""
        self.options.log_warn = on
        server_log().enable(LogLevel.WARN, on)

    def set_log_error(self, on: bool) -> None:
        """Write errors."""
        self.options.log_error = on
        server_log().enable(LogLevel.ERROR, on)

    def set_log_format(self, log_format: LogFormat) -> None:
        """Choose the form of the time stamps."""
        self.options.log_format = log_format
        server_log().set_format(log_format)

    def set_log_verbose(self, level: int) -> None:
        """Write verbose messages if ``level`` is above 0."""
        self.options.log_verbose = level
        server_log().set_verbose(level)

    def set_metrics(self, on: bool) -> None:
        """Collect metrics."""
        self.options.metrics = on

    def set_gpu_metrics(self, on: bool) -> None:
        """Collect those of the GPUs."""
        self.options.gpu_metrics = on

    def set_cpu_metrics(self, on: bool) -> None:
        """Collect those of the CPU."""
        self.options.cpu_metrics = on

    def set_metrics_interval(self, milliseconds: int) -> None:
        """Kept; metrics are read when they are asked for."""
        self.options.metrics_interval = milliseconds

    def set_backend_directory(self, directory: str) -> None:
        """Kept; backends come as Python packages."""
        self.options.backend_directory = directory

    def set_repo_agent_directory(self, directory: str) -> None:
        """Say where agents that are no package lie."""
        self.options.repo_agent_directory = directory

    def set_model_load_device_limit(self, kind: InstanceGroupKind, device: int, fraction: float) -> None:
        """Limit the memory of a GPU that loads may use.

        Raises:
            UnsupportedError: ``kind`` is not GPU.
        """
        check_device_limit(kind)
        self.options.model_load_device_limits.append(ModelLoadDeviceLimit(kind, device, fraction))

    def set_backend_config(self, backend: str, setting: str, value: str) -> None:
        """Set something for a backend."""
        self.options.backend_configuration.setdefault(backend, {})[setting] = value

    def set_host_policy(self, policy: str, setting: str, value: str) -> None:
        """Kept; instances are not bound to processors.

        Raises:
            UnsupportedError: Triton does not know ``setting`` either.
        """
        check_host_policy(setting)
        self.options.host_policies.setdefault(policy, {})[setting] = value

    def set_metrics_config(self, name: str, setting: str, value: str) -> None:
        """Set something for metrics."""
        self.options.metrics_configuration.setdefault(name, {})[setting] = value
