"""Putting a loader together from its options, for a server and for the commands that need none."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repoagent.audit import NO_AUDIT, Audit
from repoagent.converters import BUILT_IN_CONVERTERS
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.loader.agent_directory import DEFAULT_DIRECTORY
from repoagent.loader.attesting import AttestSettings, open_attesting
from repoagent.loader.converting.environments import ConverterSettings
from repoagent.loader.converting.registry import Converters
from repoagent.loader.converting.shared import Trust, open_shared
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.load_context import Services
from repoagent.loader.loader import Loader
from repoagent.loader.plan import ChainPlanner
from repoagent.loader.plugins import PluginManager, key_providers
from repoagent.loader.policy import PolicyPlanner, read_policy
from repoagent.loader.policy.rules import NO_RULE, Mode, Policy
from repoagent.storage.cache.cache import Cache
from repoagent.storage.secrets.keys import resolve_key
from repoagent.storage.workspaces.workspace import WorkspaceRoot


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """The options of a loader. The names of Triton's flags and their defaults, where the meaning is the same."""

    repoagent_directory: Path | None = DEFAULT_DIRECTORY
    repoagents_from_directory: tuple[str, ...] = ()
    """Agents that are taken from there, though a package offers them too."""
    agent_policy: Path | None = None
    """The operator's policy file; see docs/reference for what it can demand of every model."""
    workspace_directory: Path | None = None
    cache_directory: Path | None = None
    cache_quota_bytes: int | None = None
    allow_swap: bool = False
    """Let confidential plaintext lie in memory although the machine may swap it to disk."""
    allow_core_dumps: bool = False
    """Let the kernel write core dumps of this process once it holds confidential plaintext."""
    confidential_directory: Path | None = None
    """A memory filesystem for confidential plaintext; by default ``/dev/shm``."""
    allow_exec_keys: bool = False
    """Let ``exec:`` key references of models run programs as the server."""
    model_config_name: str | None = None
    """Read ``configs/NAME.pbtxt`` of a model, where there is one, instead of ``config.pbtxt``."""
    config_variables: Mapping[str, str] = field(default_factory=dict)
    """What ``${NAME}`` stands for in ``config.pbtxt``; without any, such text means nothing special."""
    repository_timeout_seconds: float = 15
    """How long a remote repository has to answer a question, and for how long a download may be silent."""
    exit_timeout_seconds: float = 30
    """How long the end waits for running requests and for agents."""
    converters: ConverterSettings = field(default_factory=ConverterSettings)
    """The environments of converters, and whether sources that are code may be opened."""
    limits: Limits = DEFAULT_LIMITS
    """What one model, file or request may take."""
    audit: Audit = NO_AUDIT
    """Gets what is done to models: loads, unloads, decisions of the policy, uses of keys."""
    attest: AttestSettings | None = None
    """With it, every load that is judged leaves a signed receipt."""
    conversion_cache: str | None = None
    """An fsspec URL with conversions of others, for models whose rule of the policy names builders."""
    conversion_sign_key: str | None = None
    """A key reference: what is converted here is signed with it, and put there."""


def open_loader(
    options: LoaderOptions,
    plugins: PluginManager,
    resources: ExitStack,
    on_unload_request: Callable[[str, str], None] | None = None,
    planner: ChainPlanner | None = None,
) -> Loader:
    """A loader by ``options``; it and what it needs are closed with ``resources``.

    ``planner`` decides which agents run, before the policy of ``options`` does.
    """
    workspaces = WorkspaceRoot(
        options.workspace_directory,
        confidential_dir=options.confidential_directory,
        allow_swap=options.allow_swap,
        allow_core_dumps=options.allow_core_dumps,
    )
    resources.enter_context(workspaces)
    cache = resources.enter_context(Cache(options.cache_directory, quota=options.cache_quota_bytes))
    if options.cache_directory is not None:  # The default one may be unusable: who needs no cache does without.
        cache.check()
    registry = AgentRegistry(options.repoagent_directory, preferred=options.repoagents_from_directory)
    policy = read_policy(options.agent_policy) if options.agent_policy is not None else None
    keys = key_providers(plugins, allow_commands=options.allow_exec_keys, limits=options.limits)
    attesting = None
    if options.attest is not None:
        key = resolve_key(options.attest.key, keys)
        attesting = open_attesting(options.attest, key, plugins, registry, _rule_of(policy))
    sign_key = options.conversion_sign_key
    shared = open_shared(
        options.conversion_cache,
        resolve_key(sign_key, keys) if sign_key is not None else None,
        _trust_of(policy),
        filesystems=plugins.registry("filesystems"),
        timeout=options.repository_timeout_seconds,
        most=options.limits.download_bytes,
    )
    services = Services(
        cache=cache,
        key_providers=keys,
        filesystems=plugins.registry("filesystems"),
        converters=Converters(plugins.registry("converters", BUILT_IN_CONVERTERS)),
        converter_settings=options.converters,
        limits=options.limits,
        model_config_name=options.model_config_name,
        config_variables=options.config_variables,
        timeout=options.repository_timeout_seconds,
        audit=options.audit,
        attesting=attesting,
        shared=shared,
        notify=plugins.notify,
        on_unload_request=on_unload_request,
    )
    if policy is not None:
        planner = PolicyPlanner(policy, registry, planner, audit=options.audit)
    loader = Loader(registry, workspaces, services, planner=planner)
    resources.callback(loader.close, options.exit_timeout_seconds)
    return loader


def _trust_of(policy: Policy | None) -> Callable[[str], Trust]:
    """Whose conversions are taken for a model: those that its rule names."""

    def trust(model: str) -> Trust:
        rule = NO_RULE if policy is None else policy.rule_for(model)
        if rule.mode is Mode.OFF or rule.conversions == "build":
            return Trust()
        only = rule.conversions == "shared-only" and rule.mode is Mode.ENFORCE
        return Trust(rule.builders, rule.builders_needed, only)

    return trust


def _rule_of(policy: Policy | None) -> Callable[[str], Mapping[str, Any]]:
    """What a receipt states of the policy for a model."""
    if policy is None:
        return lambda _model: {}

    def rule(model: str) -> Mapping[str, Any]:
        found = policy.rule_for(model)
        return {"sha256": policy.sha256, "mode": found.mode.value, "models": list(found.models)}

    return rule
