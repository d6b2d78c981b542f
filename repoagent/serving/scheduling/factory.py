"""Choosing the scheduler that a model configuration asks for."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from repoagent.serving.instances.base import Instance, NativeInstance
from repoagent.serving.measuring.statistics import ModelStatistics
from repoagent.serving.scheduling.cache import ResponseCache
from repoagent.serving.scheduling.caching import CachingScheduler
from repoagent.serving.scheduling.clock import Clock, MonotonicClock
from repoagent.serving.scheduling.direct import DeferringScheduler, DirectScheduler, ModelScheduler, NativeScheduler
from repoagent.serving.scheduling.dynamic import DynamicBatchScheduler
from repoagent.serving.scheduling.limited import LimitedInstance
from repoagent.serving.scheduling.ordering import OrderedScheduler
from repoagent.serving.scheduling.rules import BatchRule
from repoagent.serving.scheduling.sequence import SequenceScheduler
from repoagent.serving.scheduling.settings import BatchSettings
from repoagent.serving.scheduling.states import SequenceStates

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["new_scheduler", "with_cache"]


def new_scheduler(
    name: str,
    version: int,
    config: "ModelConfig",
    instances: Sequence[Instance],
    statistics: ModelStatistics,
    *,
    cache: ResponseCache | None = None,
    states: SequenceStates | None = None,
    clock: Clock | None = None,
) -> ModelScheduler:
    """The scheduler for one version of a model, which owns ``instances`` from now on. ``config`` is complete.

    ``cache`` is the server's; it is used if ``config`` says so. ``states`` are the model's, of its sequences.
    """
    clock = clock or MonotonicClock()
    executing = _executing(name, config, instances, statistics, clock, states)
    scheduler = with_cache(executing, version, config, statistics, cache)
    return OrderedScheduler(name, scheduler) if config.dynamic_batching.preserve_ordering else scheduler


def _executing(
    name: str,
    config: "ModelConfig",
    instances: Sequence[Instance],
    statistics: ModelStatistics,
    clock: Clock,
    states: SequenceStates | None,
) -> ModelScheduler:
    if config.HasField("sequence_batching"):
        return SequenceScheduler(name, config, instances, statistics, clock, states)
    if config.HasField("dynamic_batching"):
        settings, rule = BatchSettings.of(config), BatchRule(config)
        return DynamicBatchScheduler(name, instances, statistics, settings=settings, rule=rule, clock=clock)
    return _direct(instances)(name, instances, statistics, clock)


def _direct(instances: Sequence[Instance]) -> type[DirectScheduler]:
    bare = [instance.inner if isinstance(instance, LimitedInstance) else instance for instance in instances]
    native = [instance for instance in bare if isinstance(instance, NativeInstance)]
    if any(instance.defers for instance in native):
        return DeferringScheduler
    return NativeScheduler if native else DirectScheduler


def with_cache(
    scheduler: ModelScheduler,
    version: int,
    config: "ModelConfig",
    statistics: ModelStatistics,
    cache: ResponseCache | None,
) -> ModelScheduler:
    """``scheduler`` behind ``cache``, if both the server and the model want that."""
    if cache is None or not config.response_cache.enable:
        return scheduler
    return CachingScheduler(version, scheduler, cache, statistics, MonotonicClock())
