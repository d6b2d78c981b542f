"""Rules on the entries of ``model_repository_agents``."""

from collections.abc import Iterator

from repoagent.config.model_config_pb2 import ModelConfig

__all__ = ["problems"]


def problems(config: ModelConfig, name: str) -> Iterator[str]:
    """Agents without a name, and parameters without a key."""
    for index, agent in enumerate(config.model_repository_agents.agents):
        if not agent.name:
            yield f"must specify 'name' in repository agent {index} of model '{name}'"
        if any(not parameter.key for parameter in agent.parameters):
            yield f"must specify 'key' in every parameter of repository agent {index} of model '{name}'"
