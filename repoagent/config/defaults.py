"""What follows from a configuration: its agents, the versions that are served, and the values of what it leaves out.

The values are those that Triton's configuration endpoint shows.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from repoagent.config.backends import BACKEND_OF_PLATFORM, ENSEMBLE, PLATFORM_OF_BACKEND, backend_of, model_filenames
from repoagent.config.model_config_pb2 import ModelConfig, ModelInstanceGroup

_SEQUENCE_IDLE_MICROSECONDS: Final = 1_000_000


def default_config(name: str) -> ModelConfig:
    """The configuration of a model directory without a ``config.pbtxt``: nothing but its name."""
    return ModelConfig(name=name)


def normalize(
    config: ModelConfig,
    *,
    model_name: str = "",
    files: Collection[str] = (),
    gpus: Sequence[int] | None = (),
) -> ModelConfig:
    """A copy of ``config`` with defaults in place of what it leaves out; what it has stays.

    ``files`` are the names in a version directory: they imply a backend that the configuration leaves out. ``gpus`` are
    the devices that may be used; without any, KIND_AUTO becomes KIND_CPU, and with None instance groups stay as they
    are, as it is not known yet. Doing it twice changes nothing. Nothing is checked here: see
    :func:`~repoagent.config.check` with ``complete=True``.
    """
    result = ModelConfig()
    result.CopyFrom(config)
    if not result.name:
        result.name = model_name
    _complete_backend(result, files)
    if not result.HasField("version_policy"):
        result.version_policy.latest.num_versions = 1
    _complete_scheduling(result)
    if not _is_ensemble(result):
        _complete_optimization(result)
        if gpus is not None:
            _complete_instance_groups(result, gpus)
    return result


def _is_ensemble(config: ModelConfig) -> bool:
    return config.platform == ENSEMBLE or config.HasField("ensemble_scheduling")


def _complete_backend(config: ModelConfig, files: Collection[str]) -> None:
    if _is_ensemble(config):
        return
    named = not (config.backend or backend_of(config))
    if not config.backend:
        config.backend = backend_of(config) or _backend_of_files(config, files)
    if not config.platform:
        config.platform = PLATFORM_OF_BACKEND.get(config.backend, "")
    if not config.default_model_filename:
        config.default_model_filename = _filename(config, files, by_name=named)


def _backend_of_files(config: ModelConfig, files: Collection[str]) -> str:
    """The backend whose model file lies in the version directory; else the ``X`` of a model called ``name.X``."""
    if config.platform or config.default_model_filename:
        return ""
    for backend, filename in model_filenames().items():
        if filename in files:
            return backend
    return config.name.partition(".")[2]


def _filename(config: ModelConfig, files: Collection[str], *, by_name: bool) -> str:
    """The usual one of the backend. ``by_name``: the model's name or files imply it, and then Triton shows it for any
    backend; else only if the file is there."""
    known = model_filenames().get(config.backend, "")
    if known or config.platform in BACKEND_OF_PLATFORM or not config.backend:
        return known
    name = f"model.{config.backend}"
    return name if by_name or name in files else ""


def _complete_scheduling(config: ModelConfig) -> None:
    largest = [config.max_batch_size] if config.max_batch_size > 0 else []
    match config.WhichOneof("scheduling_choice"):
        case "dynamic_batching":
            if not config.dynamic_batching.preferred_batch_size:
                config.dynamic_batching.preferred_batch_size.extend(largest)
        case "sequence_batching":
            batching = config.sequence_batching
            batching.max_sequence_idle_microseconds = (
                batching.max_sequence_idle_microseconds or _SEQUENCE_IDLE_MICROSECONDS
            )
            if batching.HasField("oldest") and not batching.oldest.preferred_batch_size:
                batching.oldest.preferred_batch_size.extend(largest)


def _complete_optimization(config: ModelConfig) -> None:
    optimization = config.optimization
    if not optimization.HasField("input_pinned_memory"):
        optimization.input_pinned_memory.enable = True
    if not optimization.HasField("output_pinned_memory"):
        optimization.output_pinned_memory.enable = True


def _complete_instance_groups(config: ModelConfig, gpus: Sequence[int]) -> None:
    if not config.instance_group:
        config.instance_group.add(name=config.name)
    for index, group in enumerate(config.instance_group):
        group.name = group.name or f"{config.name}_{index}"
        if group.kind == ModelInstanceGroup.KIND_AUTO:
            group.kind = _resolve_auto(group, gpus)
        group.count = max(1, group.count)
        if group.kind == ModelInstanceGroup.KIND_GPU and not group.gpus:
            group.gpus.extend(gpus)


def _resolve_auto(group: ModelInstanceGroup, gpus: Sequence[int]) -> "ModelInstanceGroup.Kind":
    usable = bool(gpus) and set(group.gpus) <= set(gpus)
    return ModelInstanceGroup.KIND_GPU if usable else ModelInstanceGroup.KIND_CPU


@dataclass(frozen=True, slots=True)
class AgentEntry:
    """One entry of ``model_repository_agents``: the agent's name and its parameters, in file order, repeats kept."""

    name: str
    parameters: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        # Values may hold what should not be logged: show the keys only.
        return f"AgentEntry(name={self.name!r}, parameters={[key for key, _ in self.parameters]})"


def agent_entries(config: ModelConfig) -> list[AgentEntry]:
    """The agents of ``config`` in the order in which they run; empty when it names none."""
    return [
        AgentEntry(agent.name, tuple((parameter.key, parameter.value) for parameter in agent.parameters))
        for agent in config.model_repository_agents.agents
    ]


def select_versions(config: ModelConfig, available: Collection[int]) -> list[int]:
    """The versions to serve out of ``available``, ascending.

    Without a policy the highest version is served. A policy message that is there but empty serves all of them, as
    in Triton. The result is empty when nothing that the policy asks for is available.
    """
    versions = sorted(set(available))
    if not config.HasField("version_policy"):
        return versions[-1:]
    policy = config.version_policy
    match policy.WhichOneof("policy_choice"):
        case "latest":
            return versions[max(0, len(versions) - policy.latest.num_versions) :]
        case "specific":
            wanted = set(policy.specific.versions)
            return [version for version in versions if version in wanted]
        case _:
            return versions


def no_version(model: str, available: Collection[int]) -> str:
    """The error for a ``model`` of which :func:`select_versions` leaves nothing: Triton's, and what there is."""
    there = ", ".join(str(version) for version in sorted(set(available)))
    found = f"there are only {there}" if there else "there is no version directory (1, 2, ...)"
    if model.isdecimal() and not there:  # the directory of a model in the place of a repository
        found += f"; '{model}' is itself the name of one: the repository may be a directory higher"
    return f"at least one version must be available under the version policy of model '{model}': {found}"
