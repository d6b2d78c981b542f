"""Versions of a model ``m`` for tests of what executes its requests."""

from repoagent.config import ModelConfig
from repoagent.serving.instances.instance import VersionContext
from repoagent.serving.measuring.latencies import RunTime
from repoagent.serving.measuring.statistics import ModelStatistics


def version_of(
    statistics: ModelStatistics | None = None,
    *,
    config: ModelConfig | None = None,
    version: int = 1,
    batching: bool = False,
    decoupled: bool = False,
    run_time: RunTime | None = None,
) -> VersionContext:
    """One of a certain configuration, or of one that says no more than the arguments."""
    if config is None:
        config = ModelConfig(name="m", max_batch_size=8 if batching else 0)
        config.model_transaction_policy.decoupled = decoupled
    return VersionContext("m", version, config, statistics or ModelStatistics(), run_time or RunTime())
