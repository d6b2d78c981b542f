"""The options of a serving core, and what is made of them: repositories, a builder, the models of the start."""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from repoagent.errors import InternalError, InvalidArgumentError
from repoagent.loader.assembly import LoaderOptions
from repoagent.loader.load_context import Progress
from repoagent.loader.loader import Loader
from repoagent.serving.backends.registry import BackendRegistry
from repoagent.serving.lifecycle.named_loads import NamedLoads
from repoagent.serving.lifecycle.on_demand import OnDemand
from repoagent.serving.lifecycle.repository_follower import Poller
from repoagent.serving.lifecycle.repository_set import RepositorySet
from repoagent.serving.measuring.latencies import LatencyOptions
from repoagent.serving.scheduling.rate_limiter import RateLimiter, RateLimiterResource
from repoagent.serving.scheduling.response_cache import open_response_cache
from repoagent.serving.tracing.trace_settings import TraceSettings
from repoagent.serving.versions.ensemble_builder import EnsembleBuilder
from repoagent.serving.versions.model_builder import ModelBuilder
from repoagent.storage.repositories.sources import Repository


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
    on_progress: Callable[[Progress], None] | None = None
    """Called with the progress of a load's downloads and agents, on the thread that works; it should be quick."""

    def check(self) -> None:
        """Raise ``InvalidArgumentError`` for options that contradict each other."""
        if self.on_demand and self.control_mode is not ControlMode.EXPLICIT:
            raise InvalidArgumentError("models can be loaded on demand only if the model control mode is EXPLICIT")
        if self.unload_idle_seconds is not None and not self.on_demand:
            raise InvalidArgumentError("idle models can be unloaded only if models are loaded on demand")


AGAIN_SECONDS: Final = 2.0
"""Seconds between two tries to start, while a repository cannot be listed."""
_QUICKEST_LOOK: Final = 0.05
_SLOWEST_LOOK: Final = 30.0
"""Seconds between two looks for idle models."""
_REASONS: Final = 3
"""How many models' reasons the error of a start has."""


def startup_names(options: CoreOptions, repositories: RepositorySet, loads: NamedLoads) -> Sequence[str]:
    """The models to load at the start; raises if a repository cannot be listed."""
    everything = repositories.names()  # Asked for in any case: a wrong path should show now.
    if options.control_mode is not ControlMode.EXPLICIT or "*" in options.startup_models:
        return everything
    named = [model for name in options.startup_models for model in loads.ids(name)]
    return list(dict.fromkeys(named))


def startup_failure(failed: Mapping[str, str]) -> InternalError:
    """The error of a start that ``failed`` models end, with the first reasons: an embedded server may have no log."""
    reasons = [text.replace("failed to load ", "", 1) for text in failed.values()][:_REASONS]
    if len(failed) > _REASONS:
        reasons.append(f"{', '.join([*failed][_REASONS:])} failed too, see the log for the reasons")
    hint = "to serve the others, turn exit_on_error off (--exit-on-error=false)"
    return InternalError(f"failed to load all models: {'; '.join(reasons)}; {hint}")


def pollers(options: CoreOptions, poll: Callable[[], None], demand: OnDemand) -> list[Poller]:
    """What the server does again and again while it is ready."""
    found = []
    if options.control_mode is ControlMode.POLL:
        found.append(Poller(poll, options.poll_seconds))
    idle = options.unload_idle_seconds
    if idle is not None:
        every = min(max(idle / 4, _QUICKEST_LOOK), _SLOWEST_LOOK)
        found.append(Poller(lambda: demand.unload_idle(idle), every, "unloading idle models"))
    return found


def new_model_builder(
    make: Callable[..., ModelBuilder],
    options: CoreOptions,
    registry: BackendRegistry,
    loader: Loader,
    ensembles: EnsembleBuilder,
) -> ModelBuilder:
    """The builder of versions that ``make``, mostly the class itself, makes by ``options``."""
    return make(
        registry,
        strict=options.strict_model_config,
        retries=options.load_retry_count,
        admit=loader.admit,
        ensembles=ensembles,
        latencies=options.latencies,
        limits=options.limits,
        cache=open_response_cache(options.cache_config),
        limiter=None if options.rate_limit is RateLimitMode.OFF else RateLimiter(options.rate_limit_resources),
    )


def open_repositories(options: CoreOptions, filesystems: Mapping[str, str]) -> RepositorySet:
    """The repositories that ``options`` name; ``filesystems`` are those of plug-ins. Raises ``InvalidArgumentError`` if
    there is none, or one cannot be understood."""
    if not options.repositories:
        raise InvalidArgumentError("--model-repository must be specified")
    return RepositorySet(
        options.repositories,
        lambda url: Repository.open(
            url,
            storage_options=options.storage_options,
            filesystems=filesystems,
            timeout=options.repository_timeout_seconds,
            limits=options.limits,
        ),
        namespacing=options.model_namespacing,
    )
