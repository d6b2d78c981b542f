"""The instances of one version, each known by its part of the configuration, and their scheduler."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from repoagent.config import ModelConfig
from repoagent.config.model_config_pb2 import ModelInstanceGroup
from repoagent.errors import CancelledError, UnsupportedError
from repoagent.serving.instances.backend import BackendModel, BatchRunner, Capability, InstanceSpec
from repoagent.serving.instances.batches import RaggedJoiner
from repoagent.serving.instances.instance import Instance, VersionContext, close_all, group_specs
from repoagent.serving.instances.native_instances import NativeInstance
from repoagent.serving.instances.runner_instances import RaggedInstance, RunnerInstance, StagedRunnerInstance
from repoagent.serving.scheduling.ahead import AheadScheduler
from repoagent.serving.scheduling.batch_queue import BatchRule, BatchSettings
from repoagent.serving.scheduling.batching import DynamicBatchScheduler
from repoagent.serving.scheduling.direct import DirectScheduler
from repoagent.serving.scheduling.rate_limiter import Demand, LimitedInstance, RateLimiter
from repoagent.serving.scheduling.response_cache import ResponseCache
from repoagent.serving.scheduling.scheduler import Scheduler
from repoagent.serving.scheduling.sequence import IterativeScheduler, SequenceScheduler
from repoagent.serving.scheduling.sequence_controls import SequenceStates
from repoagent.serving.scheduling.steps import Clock
from repoagent.serving.scheduling.wrappers import CachingScheduler, OrderedScheduler

_Key = tuple[InstanceSpec, bytes]


@dataclass(frozen=True, slots=True)
class InstanceChange:
    """Instances that were made beside those that there are, and those that are to go."""

    added: dict[_Key, Instance]
    removed: tuple[_Key, ...]

    @property
    def empty(self) -> bool:
        return not self.added and not self.removed

    def discard(self) -> None:
        """Close what was made: the change is not to be."""
        close_all(self.added.values())


class InstanceSet:
    """The instances of ``version``, none to begin with, made by ``model``.

    Each of them waits for the resources that its group names, if there is a ``limiter``.
    """

    def __init__(self, version: VersionContext, model: BackendModel, limiter: RateLimiter | None) -> None:
        self._version = version
        self._model = model
        self._limiter = limiter
        self._present: dict[_Key, Instance] = {}

    @property
    def instances(self) -> list[Instance]:
        """Those that there are, in the order of the configuration."""
        return list(self._present.values())

    def prepare(self, config: ModelConfig, cancelled: Callable[[], bool] = lambda: False) -> InstanceChange:
        """Make what ``config``, which is complete, asks for and is not there; none is left open if this raises.

        Raises what the model raises, and ``CancelledError`` if ``cancelled`` became true between two of them.
        """
        wanted = {
            (spec, _without_count(group)): (group, spec)
            for group in config.instance_group
            for spec in group_specs(group)
        }
        added: dict[_Key, Instance] = {}
        with ExitStack() as undo:
            undo.callback(lambda: close_all(added.values()))
            for key, (group, spec) in wanted.items():
                if key not in self._present:
                    if cancelled():
                        raise CancelledError(f"the load of model '{config.name}' was cancelled")
                    added[key] = self._make(group, spec)
            undo.pop_all()
        return InstanceChange(added, tuple(key for key in self._present if key not in wanted))

    def _make(self, group: ModelInstanceGroup, spec: InstanceSpec) -> Instance:
        demand = None if self._limiter is None else Demand.of(group.rate_limiter, spec.device_id)
        if self._limiter is None or demand is None:
            return _instance(self._version, self._model, spec)
        with ExitStack() as undo:
            ticket = self._limiter.ticket(demand)
            undo.callback(ticket.close)
            instance = LimitedInstance(_instance(self._version, self._model, spec), ticket)
            undo.pop_all()
        return instance

    def apply(self, change: InstanceChange) -> Sequence[Instance]:
        """Take ``change`` over and return the instances that are to go; closing them is the caller's."""
        removed = [self._present.pop(key) for key in change.removed]
        self._present.update(change.added)
        return removed


def _without_count(group: ModelInstanceGroup) -> bytes:
    """What an instance can depend on besides its own name, kind and device."""
    mine = type(group)()
    mine.CopyFrom(group)
    mine.ClearField("count")
    mine.ClearField("gpus")
    return mine.SerializeToString(deterministic=True)


def _instance(version: VersionContext, model: BackendModel, spec: InstanceSpec) -> Instance:
    config = version.config
    inner = model.create_instance(spec)
    if isinstance(inner, BatchRunner):
        if RaggedJoiner.needed(config):
            return RaggedInstance(version, inner)
        kind = StagedRunnerInstance if Capability.OVERLAPS in inner.capabilities else RunnerInstance
        return kind(version, inner)
    if config.batch_input or config.batch_output:
        inner.close()
        raise UnsupportedError(
            f"model '{version.name}' asks for batch_input or batch_output, which mean nothing to backend "
            f"'{config.backend}': its models get the requests of a batch one by one"
        )
    return NativeInstance(version, inner)


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
    scheduler = _executing(version, instances, clock or Clock(), states)
    if cache is not None and version.config.response_cache.enable:
        scheduler = CachingScheduler(version, scheduler, cache, Clock())
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
