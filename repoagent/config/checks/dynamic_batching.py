"""Rules on dynamic batching: preferred sizes, priorities, and what preserving the order rules out."""

from collections.abc import Iterator

from repoagent.config.model_config_pb2 import ModelConfig, ModelDynamicBatching, ModelQueuePolicy

__all__ = ["problems"]


def problems(config: ModelConfig, name: str) -> Iterator[str]:
    """Problems of ``dynamic_batching``, if the model has it."""
    if not config.HasField("dynamic_batching"):
        return
    batching = config.dynamic_batching
    yield from _size_problems(batching, config.max_batch_size, name)
    yield from _priority_problems(batching, name)
    if batching.preserve_ordering:
        yield from _ordering_problems(batching, name)


def _size_problems(batching: ModelDynamicBatching, max_batch_size: int, name: str) -> Iterator[str]:
    if any(size <= 0 for size in batching.preferred_batch_size):
        yield f"dynamic batching preferred size must be positive for {name}"
    if any(size > max_batch_size for size in batching.preferred_batch_size):
        yield f"dynamic batching preferred size must be <= max batch size for {name}"


def _priority_problems(batching: ModelDynamicBatching, name: str) -> Iterator[str]:
    levels = batching.priority_levels
    if levels == 0:
        return
    if not 1 <= batching.default_priority_level <= levels:
        yield f"default priority level must be in range [1, {levels}] for {name}"
    if not all(1 <= level <= levels for level in batching.priority_queue_policy):
        yield f"priority queue policy must have priority level in range [1, {levels}] for {name}"


def _ordering_problems(batching: ModelDynamicBatching, name: str) -> Iterator[str]:
    if batching.priority_levels > 1:
        yield f"Only one priority level is allowed when 'preserve_ordering' is true for {name}"
    if any(map(_delays, [batching.default_queue_policy, *batching.priority_queue_policy.values()])):
        yield f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {name}"


def _delays(policy: ModelQueuePolicy) -> bool:
    return policy.default_timeout_microseconds != 0 and policy.timeout_action == ModelQueuePolicy.DELAY
