"""The settings of a serving core. The names of Triton's flags and their defaults, where the meaning is the same."""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repoagent.errors import InvalidArgumentError
from repoagent.loader.assembly import LoaderOptions
from repoagent.serving.measuring.latencies import LatencyOptions
from repoagent.serving.scheduling.rate_limiter import RateLimiterResource
from repoagent.serving.tracing.trace_settings import TraceSettings

if TYPE_CHECKING:
    from repoagent.loader.load_context import Progress


class ControlMode(enum.Enum):
    """Who decides which models are loaded; the values are those of ``--model-control-mode``."""

    NONE = "none"
    """All models of the repositories, at the start, for good."""
    POLL = "poll"
    """All models of the repositories; changes are noticed and followed."""
    EXPLICIT = "explicit"
    """What ``startup_models`` and calls of ``load`` and ``unload`` name."""


class RateLimitMode(enum.Enum):
    """Whether executions wait for resources; the values are those of ``--rate-limit``."""

    OFF = "off"
    """``rate_limiter`` of instance groups has no effect."""
    EXECUTION_COUNT = "execution_count"
    """The instance with the fewest executions, by its priority, is next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreOptions(LoaderOptions):
    """The options of a :class:`~repoagent.serving.core.ServingCore`."""

    repositories: tuple[str, ...]
    """Model repositories: directories or URLs, at least one."""
    control_mode: ControlMode = ControlMode.NONE
    poll_seconds: float = 15
    startup_models: tuple[str, ...] = ()
    """EXPLICIT only: models to load at the start; ``"*"`` means all."""
    strict_model_config: bool = False
    """True: a configuration must be complete; nothing is filled in from the model's files."""
    exit_on_error: bool = True
    """Whether ``start`` fails when a model does."""
    strict_readiness: bool = True
    """Whether the server counts as ready only while every model is."""
    ready_models: tuple[str, ...] = ()
    """The models that must be loaded for the server to count as ready; ``strict_readiness`` means nothing then."""
    drain_timeout_seconds: float = 30
    """How long an unload or a reload waits for the running requests of the old model."""
    load_threads: int = 4
    """How many models are loaded at once."""
    load_retry_count: int = 0
    """How often a load that failed in the backend is tried again."""
    model_namespacing: bool = False
    """Let models in different repositories have the same name; the repository is the namespace of its models."""
    on_demand: bool = False
    """EXPLICIT only: load a model of the repositories when the first request for it comes."""
    memory_budget_bytes: int | None = None
    """EXPLICIT only: how many bytes of model files may be loaded on demand before those that were used least lately
    are unloaded; None is no limit."""
    unload_idle_seconds: float | None = None
    """With ``on_demand``: unload a model that was loaded on demand when it had no request for so long."""
    trace: TraceSettings = field(default_factory=TraceSettings)
    """Which requests are traced into which file; none by default."""
    trace_suffix: str = ""
    """Added to the name of each file of traces: several processes write none of them together."""
    cache_config: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """The response cache: ``{"local": {"size": BYTES}}``; none by default. Models enable it themselves."""
    rate_limit: RateLimitMode = RateLimitMode.OFF
    rate_limit_resources: tuple[RateLimiterResource, ...] = ()
    """How much there is of the resources that instance groups name; none: as much as the neediest instance needs."""
    server_id: str = "triton"
    backend_config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Settings of backends, by the backend's name."""
    latencies: LatencyOptions = LatencyOptions()  # noqa: RUF009 - frozen
    """What is kept of single requests for the metrics, beside sums and counts: nothing by default."""
    storage_options: Mapping[str, object] | None = None
    """Passed to the filesystems of remote repositories."""
    on_progress: "Callable[[Progress], None] | None" = None
    """Called with the progress of a load's downloads and agents, on the thread that works; it should be quick."""

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            InvalidArgumentError: they do.
        """
        if self.on_demand and self.control_mode is not ControlMode.EXPLICIT:
            raise InvalidArgumentError("models can be loaded on demand only if the model control mode is EXPLICIT")
        if self.unload_idle_seconds is not None and not self.on_demand:
            raise InvalidArgumentError("idle models can be unloaded only if models are loaded on demand")
