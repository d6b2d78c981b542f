"""What a configuration chooses: the repository agents of the model, and the versions that are served."""

from collections.abc import Collection
from dataclasses import dataclass

from repoagent.config.model_config_pb2 import ModelConfig

__all__ = ["AgentEntry", "agent_entries", "no_version", "select_versions"]


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
    """What to say of a ``model`` of which :func:`select_versions` leaves nothing: Triton's text, and what there is."""
    there = ", ".join(str(version) for version in sorted(set(available)))
    found = f"there are only {there}" if there else "there is no version directory (1, 2, ...)"
    if model.isdecimal() and not there:  # the directory of a model in the place of a repository
        found += f"; '{model}' is itself the name of one: the repository may be a directory higher"
    return f"at least one version must be available under the version policy of model '{model}': {found}"
