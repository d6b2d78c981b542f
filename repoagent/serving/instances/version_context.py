"""What everything that executes the requests of one version of a model knows of it."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repoagent.serving.measuring.run_time import RunTime
from repoagent.serving.measuring.statistics import ModelStatistics

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = ["VersionContext"]


@dataclass(frozen=True, slots=True)
class VersionContext:
    """One version of a model: its name and configuration, which is complete, and where its numbers are kept."""

    name: str
    version: int
    config: "ModelConfig"
    statistics: ModelStatistics = field(default_factory=ModelStatistics)
    run_time: RunTime = field(default_factory=RunTime)
    """How long executions take, on whichever instance."""

    @property
    def batching(self) -> bool:
        """Whether the first dimension of its tensors is a batch."""
        return bool(self.config.max_batch_size > 0)

    @property
    def decoupled(self) -> bool:
        """Whether it sends any number of responses to a request."""
        return bool(self.config.model_transaction_policy.decoupled)
