"""From a configuration to the list of agents that will run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from repoagent.api.model import Parameters
from repoagent.config import ModelConfig, agent_entries

POLICY: Final = "policy"
"""The origin of an entry that the operator demands."""


@dataclass(frozen=True, slots=True)
class PlannedAgent:
    """One entry of a chain: which agent, with what, and who asked for it ("config" or "policy").

    The load goes on without an entry that is not ``required`` and fails; it is in the report and the log. The files in
    ``trust_roots`` are what the operator lets this entry trust.
    """

    name: str
    parameters: Parameters = field(default_factory=Parameters)
    origin: str = "config"
    required: bool = True
    trust_roots: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))


class ChainPlanner(Protocol):
    """Decides which agents run for a model, in which order.

    It is asked once per load, before any agent is called, on the thread of the load; different models may be planned
    at the same time. Raising a :class:`~repoagent.errors.RepoAgentError` refuses the load.
    """

    def plan(self, model_name: str, config: ModelConfig | None, *, overridden: bool = False) -> Sequence[PlannedAgent]:
        """The chain for ``model_name``. ``config`` is what the load goes by, None for a model without one.

        ``overridden`` states that ``config`` came with the load request, and not from the model's files.
        """

    def admit(self, model_name: str, config: ModelConfig) -> None:
        """Judge the configuration that a model is about to be loaded by: what the agents left, and after it was
        completed from the model's files. Raising a :class:`~repoagent.errors.RepoAgentError` refuses the load."""

    def admit_command(self, model_name: str, command: str | None) -> None:
        """Judge the program that gets a model instead of a backend; None is one that is not known yet. Raising a
        :class:`~repoagent.errors.RepoAgentError` refuses it."""


class ConfigPlanner:
    """Exactly the agents that the configuration names, in its order."""

    def plan(self, model_name: str, config: ModelConfig | None, *, overridden: bool = False) -> Sequence[PlannedAgent]:
        """The entries of ``model_repository_agents``."""
        if config is None:
            return ()
        return [PlannedAgent(entry.name, Parameters(entry.parameters)) for entry in agent_entries(config)]

    def admit(self, model_name: str, config: ModelConfig) -> None:
        """Anything goes."""

    def admit_command(self, model_name: str, command: str | None) -> None:
        """Any program may have it."""
