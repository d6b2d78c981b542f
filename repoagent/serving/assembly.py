"""Putting the parts of a serving core together from its options."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from repoagent.errors import InternalError, InvalidArgumentError
from repoagent.loader.assembly import open_loader
from repoagent.loader.loader import Loader
from repoagent.loader.plugins import PluginManager
from repoagent.serving.backends.registry import BackendRegistry
from repoagent.serving.core_options import ControlMode, CoreOptions, RateLimitMode
from repoagent.serving.ensembles.dependencies import Dependencies
from repoagent.serving.lifecycle.load_attempt import SlotContext
from repoagent.serving.lifecycle.load_pool import LoadPool, SerialQueue, pausing
from repoagent.serving.lifecycle.loaded_model import Retirements
from repoagent.serving.lifecycle.model_slot import ModelSlot
from repoagent.serving.lifecycle.model_table import ModelTable
from repoagent.serving.lifecycle.named_loads import EnsembleFollowers, NamedLoads
from repoagent.serving.lifecycle.on_demand import OnDemand
from repoagent.serving.lifecycle.repository_follower import Follower, Poller, RetryPauses
from repoagent.serving.lifecycle.unloader import Unloader, give_back_soon
from repoagent.serving.queries import CoreQueries
from repoagent.serving.reception import Reception, Router, ServerLife
from repoagent.serving.repositories.repository_set import RepositorySet
from repoagent.serving.scheduling.rate_limiter import RateLimiter
from repoagent.serving.scheduling.response_cache import open_response_cache
from repoagent.serving.tracing.tracer import Tracer
from repoagent.serving.versions.ensemble_builder import EnsembleBuilder
from repoagent.serving.versions.model_builder import ModelBuilder
from repoagent.storage import Repository

AGAIN_SECONDS: Final = 2.0
"""Seconds between two tries to start, while a repository cannot be listed."""
_QUICKEST_LOOK: Final = 0.05
_SLOWEST_LOOK: Final = 30.0
"""Seconds between two looks for idle models."""
_REASONS: Final = 3
"""How many models' reasons the error of a start has."""


def startup_names(options: CoreOptions, repositories: RepositorySet, loads: NamedLoads) -> Sequence[str]:
    """The models to load at the start.

    Raises:
        RepoAgentError: a repository cannot be listed.
    """
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
    return InternalError(f"failed to load all models: {'; '.join(reasons)}")


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


_UNLOAD_THREADS: Final = 16
"""How many models are unloaded at once. Loads do not count: an unload must not wait for those that hang."""


@dataclass(frozen=True, slots=True)
class CoreParts:
    """What a serving core is made of."""

    life: ServerLife
    load_pool: LoadPool
    unload_pool: LoadPool
    table: ModelTable
    context: SlotContext
    loads: NamedLoads
    unloader: Unloader
    follower: Follower
    queries: CoreQueries
    demand: OnDemand
    tracer: Tracer
    reception: Reception
    plugins: PluginManager
    resources: ExitStack
    """To be closed when every model has been unloaded."""


def assemble(
    options: CoreOptions,
    core: object,
    on_unload_request: Callable[[str, str], None],
    loader: Loader | None,
    backends: BackendRegistry | None,
    repositories: RepositorySet | None = None,
    make_builder: Callable[..., ModelBuilder] = ModelBuilder,
) -> CoreParts:
    """Make the parts of ``core``, which the models of some backends call; a part is made before what stands on it.

    Args:
        options: What to make them by.
        core: Given to the backends.
        on_unload_request: Called with a model and a reason when an agent asks for its model to be unloaded.
        loader: Used instead of one by ``options``, and not closed.
        backends: Used instead of those by ``options``.
        repositories: Used instead of those by ``options``.
        make_builder: Makes the builder of versions, as ``ModelBuilder`` does.

    Raises:
        RepoAgentError: something named by ``options`` is not there or not usable; nothing is left open.
    """
    life = ServerLife()
    load_pool, unload_pool = (
        LoadPool(size, give_back_soon, patience_seconds=options.limits.load_thread_seconds)
        for size in (options.load_threads, _UNLOAD_THREADS)
    )
    # A slot is made when its model is first asked for: there is a context by then.
    table = ModelTable(lambda name: ModelSlot(name, context, SerialQueue(load_pool, unload_pool)))
    dependencies = Dependencies(table.members)
    followers = EnsembleFollowers(table, dependencies)
    with ExitStack() as opened:
        plugins = opened.enter_context(PluginManager())
        repositories = repositories or open_repositories(options, plugins.registry("filesystems"))
        registry = backends or BackendRegistry(plugins.registry("backends"), options.backend_config, options.limits)
        registry.bind(core)
        loader = loader or open_loader(options, plugins, opened, on_unload_request)
        ensembles = EnsembleBuilder(Router(table, repositories), dependencies, pausing, options.latencies)
        context = SlotContext(
            repositories,
            loader,
            _model_builder(make_builder, options, registry, loader, ensembles),
            dependencies,
            Retirements(give_back_soon),
            options.drain_timeout_seconds,
            changed=followers.changed,
            on_progress=options.on_progress,
            audit=options.audit,
        )
        resources = opened.pop_all()
    loads = NamedLoads(table, repositories, followers)
    unloader = Unloader(table, dependencies, context.retirements)
    demand = OnDemand(
        table, dependencies, repositories, budget=options.memory_budget_bytes, on_request=options.on_demand
    )
    tracer = Tracer(options.trace, options.trace_suffix)
    return CoreParts(
        life,
        load_pool,
        unload_pool,
        table,
        context,
        loads,
        unloader,
        Follower(table, repositories, unloader, loads.load_all, RetryPauses(options.poll_seconds)),
        CoreQueries(table, repositories, options.server_id, caches=bool(options.cache_config)),
        demand,
        tracer,
        Reception(table, demand, tracer, life),
        plugins,
        resources,
    )


def _model_builder(
    make: Callable[..., ModelBuilder],
    options: CoreOptions,
    registry: BackendRegistry,
    loader: Loader,
    ensembles: EnsembleBuilder,
) -> ModelBuilder:
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
    """The repositories that ``options`` name; ``filesystems`` are those of plug-ins.

    Raises:
        InvalidArgumentError: there is none, or one cannot be understood.
    """
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
