"""What a model configuration sets about batching and queues, in the units that the schedulers use."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repoagent.serving.requests.request import InferRequest

if TYPE_CHECKING:
    from repoagent.config import ModelConfig
    from repoagent.config.model_config_pb2 import ModelDynamicBatching, ModelQueuePolicy


class BatchRule:
    """The rule of one model: same shapes apart from the batch, same shape values, same choice of optional inputs."""

    __slots__ = ("_batched", "_optional", "_shapes", "_variable", "trivial")

    def __init__(self, config: "ModelConfig") -> None:
        batching = config.max_batch_size > 0
        self._batched = tuple(item.name for item in config.input if batching and not item.is_shape_tensor)
        states = [state.input_name for state in config.sequence_batching.state if -1 in state.dims]
        uneven = [item for item in config.input if -1 in item.dims and not item.allow_ragged_batch]
        inputs = [item.name for item in uneven if not item.is_shape_tensor]
        self._variable = (*inputs, *states)
        self._shapes = tuple(item.name for item in config.input if item.is_shape_tensor)
        self._optional = tuple(item.name for item in config.input if item.optional)
        self.trivial = not (self._variable or self._shapes or self._optional)
        """Any requests may share a batch."""

    def size(self, request: InferRequest) -> int:
        """How many inferences ``request`` asks for, at least 1."""
        for name in self._batched:
            tensor = request.inputs.get(name)
            if tensor is not None:
                rows: int = tensor.array.shape[0]
                return rows or 1
        return 1

    def key(self, request: InferRequest) -> Hashable:
        """Equal for requests that may share a batch; so is None for all, if the rule is trivial."""
        if self.trivial:
            return None
        inputs = request.inputs
        return (
            tuple(inputs[name].array.shape[1:] for name in self._variable if name in inputs),
            tuple(inputs[name].array.tobytes() for name in self._shapes if name in inputs),
            tuple(name in inputs for name in self._optional),
        )


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How the requests of one priority level wait."""

    delays: bool = False
    """A request whose time is over waits on behind the others; else it is refused."""
    timeout_ns: int = 0
    """How long a request may wait; 0 for as long as it takes."""
    allow_override: bool = True
    """A request may ask for a shorter time. It always may where a configuration has no policy."""
    max_size: int = 0
    """How many may wait; 0 for any number."""

    @classmethod
    def of(cls, policy: "ModelQueuePolicy") -> "QueuePolicy":
        """The policy that a configuration describes."""
        return cls(
            delays=policy.timeout_action == policy.DELAY,
            timeout_ns=policy.default_timeout_microseconds * 1000,
            allow_override=policy.allow_timeout_override,
            max_size=policy.max_queue_size,
        )

    def time_for(self, asked_us: int) -> int:
        """The nanoseconds that a request which asks for ``asked_us`` (0: for nothing) may wait; 0 for no limit."""
        if self.allow_override and asked_us and (not self.timeout_ns or asked_us * 1000 < self.timeout_ns):
            return asked_us * 1000
        return self.timeout_ns

    @property
    def trivial(self) -> bool:
        """Whether requests simply wait, for as long as they themselves want."""
        return not (self.timeout_ns or self.max_size)


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """How requests become batches."""

    max_batch_size: int = 1
    preferred: frozenset[int] = frozenset({1})
    """A batch of one of these sizes goes at once. Not empty."""
    delay_ns: int = 0
    """How long a request may wait for others."""
    preserve_ordering: bool = False
    levels: int = 0
    """Number of priority levels, 1 being the most urgent; 0 for a single queue."""
    default_level: int = 0
    policy: QueuePolicy = QueuePolicy()
    level_policies: Mapping[int, QueuePolicy] = field(default_factory=dict)

    @classmethod
    def of(cls, config: "ModelConfig") -> "BatchSettings":
        """The settings in ``dynamic_batching``, or in the ``oldest`` strategy of ``sequence_batching``."""
        largest = max(1, config.max_batch_size)
        if config.HasField("sequence_batching"):
            oldest = config.sequence_batching.oldest
            return cls(
                max_batch_size=largest,
                preferred=frozenset(oldest.preferred_batch_size) or frozenset({largest}),
                delay_ns=oldest.max_queue_delay_microseconds * 1000,
                preserve_ordering=oldest.preserve_ordering,
                # A sequence that lost a request in the middle would be worth nothing.
                policy=QueuePolicy(allow_override=False),
            )
        return cls._of_dynamic(config.dynamic_batching, largest)

    @classmethod
    def _of_dynamic(cls, batching: "ModelDynamicBatching", largest: int) -> "BatchSettings":
        return cls(
            max_batch_size=largest,
            preferred=frozenset(batching.preferred_batch_size) or frozenset({largest}),
            delay_ns=batching.max_queue_delay_microseconds * 1000,
            preserve_ordering=batching.preserve_ordering,
            levels=batching.priority_levels,
            default_level=batching.default_priority_level,
            policy=QueuePolicy.of(batching.default_queue_policy)
            if batching.HasField("default_queue_policy")
            else QueuePolicy(),
            level_policies={level: QueuePolicy.of(policy) for level, policy in batching.priority_queue_policy.items()},
        )

    def level_of(self, priority: int) -> int:
        """The level of a request with that ``priority``; 0 and what lies beyond the last level mean the default."""
        if not self.levels:
            return 0
        return priority if 1 <= priority <= self.levels else self.default_level

    def policy_of(self, level: int) -> QueuePolicy:
        """How the requests of ``level`` wait."""
        return self.level_policies.get(level, self.policy) if self.levels else self.policy

    @property
    def first_come(self) -> bool:
        """Whether requests are executed in the order in which they come, and any number of them can wait for it."""
        return not self.levels and all(policy.trivial for policy in (self.policy, *self.level_policies.values()))

    @property
    def plain(self) -> bool:
        """Whether requests simply wait, one after the other, until they are executed."""
        return self.first_come and not self.delay_ns
