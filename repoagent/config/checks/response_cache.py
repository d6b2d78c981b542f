"""Rules on what the response cache cannot be combined with."""

from collections.abc import Iterator

from repoagent.config.model_config_pb2 import ModelConfig

__all__ = ["problems"]


def problems(config: ModelConfig, name: str) -> Iterator[str]:
    """Problems of ``response_cache``, if it is enabled."""
    if not config.response_cache.enable:
        return
    if config.HasField("sequence_batching"):
        yield _text(name, "sequence batching scheduler")
    if config.model_transaction_policy.decoupled:
        yield _text(name, "'decoupled' transaction policy")


def _text(name: str, feature: str) -> str:
    return f"Response Cache does not currently support model {name} with {feature}. Please disable the response cache."
