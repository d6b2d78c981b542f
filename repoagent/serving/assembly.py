"""Putting the parts of a serving core together from its options."""

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from repoagent.config import ModelConfig
from repoagent.config.suggestions import did_you_mean
from repoagent.errors import InvalidArgumentError, NotFoundError, RepoAgentError
from repoagent.loader.chain import LoadedChain
from repoagent.loader.context import Progress
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.key_schemes import key_providers
from repoagent.loader.loader import Loader
from repoagent.loader.plugins import PluginManager
from repoagent.loader.policy import PolicyPlanner, read_policy
from repoagent.serving.ensembles.dependencies import Dependencies
from repoagent.serving.lifecycle.loaded_model import Retirements
from repoagent.serving.lifecycle.model_slot import LoadOrder
from repoagent.serving.options import CoreOptions
from repoagent.serving.repositories.repository_set import RepositorySet
from repoagent.serving.requests.model_id import ModelId
from repoagent.serving.versions.model_builder import ModelBuilder
from repoagent.storage import (
    Cache,
    MemorySource,
    ModelSource,
    Repository,
    WorkspaceRoot,
)

__all__ = ["CoreContext", "open_loader", "open_repositories"]

_FILE_PREFIX: Final = "file:"


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
        ),
        namespacing=options.model_namespacing,
    )


def open_loader(
    options: CoreOptions,
    plugins: PluginManager,
    resources: ExitStack,
    on_unload_request: Callable[[str, str], None] | None = None,
) -> Loader:
    """A loader by ``options``; it and what it needs are closed with ``resources``."""
    workspaces = WorkspaceRoot(options.workspace_directory, allow_swap=options.allow_swap)
    resources.enter_context(workspaces)
    cache = resources.enter_context(Cache(options.cache_directory, quota=options.cache_quota_bytes))
    if options.cache_directory is not None:  # The default one may be unusable: who needs no cache does without.
        cache.check()
    registry = AgentRegistry(options.repoagent_directory)
    policy = read_policy(options.agent_policy) if options.agent_policy is not None else None
    loader = Loader(
        registry,
        workspaces,
        cache,
        planner=PolicyPlanner(policy, registry) if policy is not None else None,
        plugins=plugins,
        key_providers=key_providers(plugins, allow_commands=options.allow_exec_keys),
        filesystems=plugins.registry("filesystems"),
        model_config_name=options.model_config_name,
        on_unload_request=on_unload_request,
    )
    resources.callback(loader.close, options.exit_timeout_seconds)
    return loader


@dataclass(slots=True)
class CoreContext:
    """What all slots share; see :class:`~repoagent.serving.lifecycle.model_slot.SlotContext`."""

    repositories: RepositorySet
    loader: Loader
    builder: ModelBuilder
    dependencies: Dependencies
    drain_timeout_seconds: float
    retirements: Retirements = field(default_factory=Retirements)
    on_change: Callable[[str], None] = lambda _model: None

    def changed(self, model: str) -> None:
        """See :class:`~repoagent.serving.lifecycle.model_slot.SlotContext`."""
        self.on_change(model)

    on_progress: Callable[[Progress], None] | None = None

    def source(self, model: ModelId, order: LoadOrder) -> ModelSource:
        """See :class:`~repoagent.serving.lifecycle.model_slot.SlotContext`."""
        if order.files is not None:
            files = {path.removeprefix(_FILE_PREFIX): content for path, content in order.files.items()}
            return MemorySource(model.name, files)
        try:
            return self.repositories.find(model)
        except NotFoundError as error:
            if order.config is None:
                raise NotFoundError(f"{error}{self._closest(model)}") from error
            return MemorySource(model.name, {})  # A configuration alone can be a whole model: an ensemble.

    def _closest(self, model: ModelId) -> str:
        try:
            return did_you_mean(model, self.repositories.names())
        except RepoAgentError:  # what is wrong with the listing is not what was asked
            return ""

    def run_chain(self, source: ModelSource, override: ModelConfig | None, cancelled: threading.Event) -> LoadedChain:
        """See :class:`~repoagent.serving.lifecycle.model_slot.SlotContext`."""
        return self.loader.load(source, override=override, cancelled=cancelled.is_set, on_progress=self.on_progress)
