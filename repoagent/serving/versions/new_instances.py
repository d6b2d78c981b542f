"""The instances that a version's configuration asks for, over what its backend makes."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from repoagent.config.model_config_pb2 import ModelInstanceGroup
from repoagent.errors import UnsupportedError
from repoagent.serving.instances.backend import BackendModel, BatchRunner, Capability, InstanceSpec
from repoagent.serving.instances.base import Instance
from repoagent.serving.instances.batches import Joiner
from repoagent.serving.instances.native_instances import NativeInstance
from repoagent.serving.instances.ragged import RaggedJoiner
from repoagent.serving.instances.runner_instances import RaggedInstance, RunnerInstance, StagedRunnerInstance
from repoagent.serving.instances.version_context import VersionContext
from repoagent.serving.requests.reshape import Reshaper
from repoagent.serving.scheduling.limited_instances import LimitedInstance
from repoagent.serving.scheduling.rate_limiter import Demand, RateLimiter
from repoagent.serving.versions.instance_set import InstanceSet

__all__ = ["new_instances"]


def new_instances(version: VersionContext, model: BackendModel, limiter: RateLimiter | None) -> InstanceSet:
    """A set for the instances of ``version``, still empty.

    Each of them waits for the resources that its group names, if there is a ``limiter``.
    """
    return InstanceSet(lambda group, spec: _limited(partial(_instance, version, model, spec), group, spec, limiter))


def _instance(version: VersionContext, model: BackendModel, spec: InstanceSpec) -> Instance:
    config = version.config
    inner = model.create_instance(spec)
    if isinstance(inner, BatchRunner):
        if RaggedJoiner.needed(config):
            return RaggedInstance(version, inner, joiner=RaggedJoiner.of(config))
        kind = StagedRunnerInstance if Capability.OVERLAPS in inner.capabilities else RunnerInstance
        return kind(version, inner, reshaper=Reshaper.of(config), joiner=Joiner.of(config))
    if config.batch_input or config.batch_output:
        inner.close()
        raise UnsupportedError(
            f"model '{version.name}' asks for batch_input or batch_output, which mean nothing to backend "
            f"'{config.backend}': its models get the requests of a batch one by one"
        )
    return NativeInstance(version, inner)


def _limited(
    make: Callable[[], Instance],
    group: ModelInstanceGroup,
    spec: InstanceSpec,
    limiter: RateLimiter | None,
) -> Instance:
    """A new instance; it waits for the resources that its group names, if the server has a limiter."""
    demand = Demand.of(group.rate_limiter, spec.device_id) if limiter is not None else None
    if limiter is None or demand is None:
        return make()
    with ExitStack() as undo:
        ticket = limiter.ticket(demand)
        undo.callback(ticket.close)
        instance = LimitedInstance(make(), ticket)
        undo.pop_all()
    return instance
