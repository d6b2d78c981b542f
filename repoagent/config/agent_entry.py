"""The repository agents that a configuration names."""

from dataclasses import dataclass

from repoagent.config.model_config_pb2 import ModelConfig

__all__ = ["AgentEntry", "agent_entries"]


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
