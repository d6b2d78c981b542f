"""What a server would make of a model's configuration, for ``repoagent check``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from repoagent.config import ModelConfig, redact, write_json
from repoagent.serving.backends.registry import BackendRegistry
from repoagent.serving.instances.instance import as_repoagent_error
from repoagent.serving.versions.model_builder import ModelBuilder

if TYPE_CHECKING:
    from repoagent.limits import Limits
    from repoagent.loader.chain import LoadedChain
    from repoagent.loader.loader import Loader
    from repoagent.loader.plugins import PluginManager

__all__ = ["Examined", "examine"]


@dataclass(frozen=True, slots=True)
class Examined:
    """One version that a server would load."""

    number: int
    config: ModelConfig
    problem: str
    """Why this machine cannot execute it; empty if nothing is known against it."""

    def lines(self) -> list[str]:
        """For people."""
        parts = [f"version {self.number}: backend {self.config.backend or 'ensemble'}"]
        parts.append(f"max_batch_size {self.config.max_batch_size}")
        parts += [f"input '{item.name}' {list(item.dims)}" for item in self.config.input]
        parts += [f"output '{item.name}' {list(item.dims)}" for item in self.config.output]
        head = ", ".join(parts)
        return [head, f"version {self.number} cannot run here: {self.problem}"] if self.problem else [head]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"version": self.number, "config": write_json(redact(self.config)), "problem": self.problem}


def examine(
    settings: Mapping[str, Mapping[str, str]],
    strict: bool,
    limits: "Limits",
    plugins: "PluginManager",
    loader: "Loader",
    chain: "LoadedChain",
) -> list[Examined]:
    """Complete and check the configuration that the agents have left, for every version that a server would load.

    ``settings`` are those of backends; ``strict`` completes nothing.

    Raises:
        RepoAgentError: a server would refuse the model; its chain has failed.
    """
    registry = BackendRegistry(plugins.registry("backends"), settings, limits)
    builder = ModelBuilder(registry, strict=strict, admit=loader.admit, limits=limits)
    try:
        config = builder.configuration(chain.name, chain.config)
        versions = builder.plan(chain.name, config, chain.files)
        return [Examined(one, *builder.examine(chain.name, config, chain.files, one)) for one in versions]
    except Exception as error:
        failure = as_repoagent_error(error, chain.name)
        chain.fail(failure)
        failure.report = chain.report
        raise failure from error
