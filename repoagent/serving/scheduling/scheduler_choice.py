"""Choosing the scheduler that a model configuration asks for."""

from collections.abc import Sequence

from repoagent.serving.instances.backend import Capability
from repoagent.serving.instances.instance import Instance, VersionContext
from repoagent.serving.scheduling.ahead import AheadScheduler
from repoagent.serving.scheduling.batch_settings import BatchRule, BatchSettings
from repoagent.serving.scheduling.batching import DynamicBatchScheduler
from repoagent.serving.scheduling.direct import DirectScheduler
from repoagent.serving.scheduling.response_cache import ResponseCache
from repoagent.serving.scheduling.scheduler import Scheduler
from repoagent.serving.scheduling.sequence import IterativeScheduler, SequenceScheduler
from repoagent.serving.scheduling.sequence_states import SequenceStates
from repoagent.serving.scheduling.steps import Clock
from repoagent.serving.scheduling.wrappers import CachingScheduler, OrderedScheduler


def new_scheduler(
    version: VersionContext,
    instances: Sequence[Instance],
    *,
    cache: ResponseCache | None = None,
    states: SequenceStates | None = None,
    clock: Clock | None = None,
) -> Scheduler:
    """The scheduler for one version of a model, which owns ``instances`` from now on.

    ``cache`` is the server's; it is used if the version's configuration enables it. ``states`` are those of the model's
    sequences.
    """
    clock = clock or Clock()
    scheduler = _with_cache(_executing(version, instances, clock, states), version, cache)
    return OrderedScheduler(version.name, scheduler) if version.config.dynamic_batching.preserve_ordering else scheduler


def _executing(
    version: VersionContext, instances: Sequence[Instance], clock: Clock, states: SequenceStates | None
) -> Scheduler:
    name, config, statistics = version.name, version.config, version.statistics
    if config.HasField("sequence_batching"):
        sequences = SequenceScheduler(name, config, instances, statistics, clock, states)
        return IterativeScheduler(name, config, sequences) if config.sequence_batching.iterative_sequence else sequences
    if config.HasField("dynamic_batching"):
        settings, rule = BatchSettings.of(config), BatchRule(config)
        return DynamicBatchScheduler(name, instances, statistics, settings=settings, rule=rule, clock=clock)
    ahead = all(Capability.TAKES_SEVERAL in instance.capabilities for instance in instances)
    return (AheadScheduler if ahead else DirectScheduler)(name, instances, statistics, clock)


def _with_cache(scheduler: Scheduler, version: VersionContext, cache: ResponseCache | None) -> Scheduler:
    """``scheduler`` behind ``cache``, if both the server and the model want that."""
    if cache is None or not version.config.response_cache.enable:
        return scheduler
    return CachingScheduler(version, scheduler, cache, Clock())
