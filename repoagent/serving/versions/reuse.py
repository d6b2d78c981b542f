"""A new load of a model that is loaded: which of its versions serve on, and what changes about them."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from repoagent.config import ModelConfig, copy, normalize
from repoagent.serving.backends.registry import BackendRegistry
from repoagent.serving.versions.instance_set import InstanceChange
from repoagent.serving.versions.served_model import ServedModel
from repoagent.serving.versions.version_contents import Contents, Share, share_of_configuration
from repoagent.serving.versions.warmup import warm_up
from repoagent.storage.files.files import ModelFiles

logger = logging.getLogger(__name__)

_TAKEN_OVER: Final = ("version_policy", "model_repository_agents", "instance_group")


@dataclass(frozen=True, slots=True)
class Present:
    """What is there when a load builds: the versions that serve, and how to learn what the new files are."""

    versions: Mapping[int, ServedModel] = field(default_factory=dict)
    contents: Callable[[], Contents | None] = lambda: None

    def share(self, version: int, config: ModelConfig) -> Share | None:
        """What ``version`` is made of by the configuration of the new chain; None if that is unknown."""
        contents = self.contents()
        return contents.share(version, config) if contents is not None else None


@dataclass(frozen=True, slots=True)
class Kept:
    """A version that serves on. Nothing of it has changed before :meth:`commit`."""

    served: ServedModel
    config: ModelConfig
    instances: InstanceChange

    def commit(self) -> None:
        """Go by the new configuration from now on."""
        self.served.change(self.config, self.instances)

    def discard(self) -> None:
        """The load failed: let go of what was made for it."""
        self.instances.discard()


@dataclass(frozen=True, slots=True)
class Built:
    """All versions of a load: those made for it, and those kept."""

    versions: Mapping[int, ServedModel]
    kept: tuple[Kept, ...] = ()
    on_commit: Callable[[], None] = lambda: None

    @classmethod
    def of(cls, versions: Mapping[int, ServedModel | Kept]) -> "Built":
        served = {version: one.served if isinstance(one, Kept) else one for version, one in versions.items()}
        return cls(served, tuple(one for one in versions.values() if isinstance(one, Kept)))

    def discard(self) -> None:
        """Close what was made; what is kept belongs to the load before."""
        kept = {id(one.served) for one in self.kept}
        for served in self.versions.values():
            if id(served) not in kept:
                served.close()
        for one in self.kept:
            one.discard()

    def commit(self) -> None:
        """Change what is kept as the new load asks."""
        for one in self.kept:
            one.commit()
        self.on_commit()


def keep(
    served: ServedModel,
    share: Share | None,
    config: ModelConfig,
    files: ModelFiles,
    registry: BackendRegistry,
    judge: Callable[[ModelConfig], None],
    cancelled: Callable[[], bool],
    *,
    warmup_seconds: int = 0,
) -> Kept | None:
    """``served`` as a new load with ``config`` has it; None if it must be made again.

    ``judge`` raises for a configuration that may not be loaded, before anything is made by it.

    Raises:
        RepoAgentError: ``judge`` did, or an instance that it gets in addition cannot be made, or fails its warm-up.
    """
    if share is None or not _is_made_of(served, share) or served.broken or served.composition is not None:
        return None
    if served.keeps_files and not share.lasting:
        return None  # It goes on reading files that go with the load before.
    merged = _merged(served.config, config, registry)
    judge(merged)
    change = served.prepare(merged, cancelled)
    if change is None:
        return None
    try:
        added = list(change.added.values())
        warm_up(merged, files, added, cancelled=cancelled, limit_seconds=warmup_seconds)
    except BaseException:
        change.discard()
        raise
    logger.info("'%s' version %d has not changed and serves on", served.name, served.version)
    return Kept(served, merged, change)


def _is_made_of(served: ServedModel, share: Share) -> bool:
    """Whether nothing that ``served`` depends on has changed.

    The configuration may be the one that the server has completed, too: clients read it, change the instances in it,
    and send it with a load.
    """
    before = served.share
    if before is None or (share.files, share.lasting) != (before.files, before.lasting):
        return False
    return share.configuration in (before.configuration, share_of_configuration(served.config))


def _merged(complete: ModelConfig, config: ModelConfig, registry: BackendRegistry) -> ModelConfig:
    """``complete`` with what may be new in ``config``, complete again."""
    merged = copy(complete)
    for name in _TAKEN_OVER:
        merged.ClearField(name)
    if config.HasField("version_policy"):
        merged.version_policy.CopyFrom(config.version_policy)
    if config.HasField("model_repository_agents"):
        merged.model_repository_agents.CopyFrom(config.model_repository_agents)
    merged.instance_group.extend(config.instance_group)
    return normalize(merged, gpus=registry.get(merged.backend).gpus())
