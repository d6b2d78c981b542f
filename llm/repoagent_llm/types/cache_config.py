"""The caches: their sizes, how long blocks stay, and the events of the KV cache."""

from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Annotated, TypeAlias

from repoagent_llm.types import rules
from repoagent_llm.types.enums import CacheTransceiverBackendType, KvCacheTransferMode
from repoagent_llm.types.executor_errors import CheckError
from repoagent_llm.types.record import Record


@dataclass(frozen=True, slots=True)
class UniqueToken:
    """A token id and what makes it differ from the same id elsewhere (a row of a prompt table)."""

    token_id: int
    token_extra_id: int = 0


@dataclass(frozen=True, slots=True)
class KVCacheCreatedData:
    """The cache exists: how many blocks running requests may hold, and how many are retained."""

    num_blocks_per_cache_level: list[int]


@dataclass(frozen=True, slots=True)
class KVCacheStoredBlockData:
    """One block that can be reused from now on. ``cache_level`` is 0: it is in memory; 1: in a file, from before."""

    block_hash: int
    tokens: list[UniqueToken]
    lora_id: int | None
    cache_level: int
    priority: int


@dataclass(frozen=True, slots=True)
class KVCacheStoredData:
    """Blocks in the order of their tokens; ``parent_hash`` is None at a prompt's start."""

    parent_hash: int | None
    blocks: list[KVCacheStoredBlockData]


@dataclass(frozen=True, slots=True)
class KVCacheRemovedData:
    """Blocks that cannot be reused any more."""

    block_hashes: list[int]


@dataclass(frozen=True, slots=True)
class KVCacheEventDiffInt:
    """A number that changed."""

    old_value: int
    new_value: int


@dataclass(frozen=True, slots=True)
class KVCacheUpdatedData:
    """A block whose level or priority changed; None where it did not. Level 1: only ``block_folder`` has it."""

    block_hash: int
    cache_level: KVCacheEventDiffInt | None = None
    priority: KVCacheEventDiffInt | None = None


KVCacheEventData: TypeAlias = KVCacheCreatedData | KVCacheStoredData | KVCacheRemovedData | KVCacheUpdatedData


@dataclass(frozen=True, slots=True)
class KVCacheEvent:
    """One event; ids count up from 0 without gaps unless the buffer overflowed."""

    event_id: int
    data: KVCacheEventData
    window_size: int
    attention_dp_rank: int | None = None


DEFAULT_PRIORITY = 35


def _priority(value: object, where: str) -> int:
    number: int = rules.integer()(value, where)
    if not 0 <= number <= 100:
        raise CheckError("Invalid priority value. Must be between 0 and 100")
    return number


@dataclass
class KvCacheRetentionConfig(Record, readonly=True, pickled=5):
    """Priorities of a prompt's ranges, and of the tokens generated after it. Ranges are kept sorted by their start."""

    @dataclass
    class TokenRangeRetentionConfig(Record, pickled=4):
        """Tokens [token_start, token_end) (None: to the prompt's end) keep ``priority`` for ``duration_ms``."""

        token_start: Annotated[int, rules.integer()]
        token_end: Annotated[int | None, rules.maybe(rules.integer())]
        priority: Annotated[int, _priority]
        duration_ms: Annotated[timedelta | None, rules.maybe(rules.duration)] = None

    token_range_retention_configs: Annotated[
        list[TokenRangeRetentionConfig], rules.list_of(rules.instance(TokenRangeRetentionConfig))
    ]
    decode_retention_priority: Annotated[int, _priority] = DEFAULT_PRIORITY
    decode_duration_ms: Annotated[timedelta | None, rules.maybe(rules.duration)] = None
    transfer_mode: Annotated[KvCacheTransferMode, rules.instance(KvCacheTransferMode)] = KvCacheTransferMode.DRAM
    directory: Annotated[str, rules.text] = ""

    def _check_together(self) -> None:
        ranges = self.token_range_retention_configs
        ranges.sort(key=lambda item: item.token_start)
        for item in ranges:
            if item.token_start < 0:
                raise CheckError("Token indices must be non-negative.")
            if item.token_end is not None and item.token_end <= item.token_start:
                raise CheckError("Range must have a positive, non-zero length.")
        for before, after in pairwise(ranges):
            if before.token_end is None:
                raise CheckError("Invalid use of end indicator.")
            if before.token_end > after.token_start:
                raise CheckError("Token ranges must be non-overlapping.")


_positive = rules.maybe(rules.integer(1))
_fraction = rules.maybe(rules.float32(above=0, below=1))
_windows = rules.maybe(rules.list_of(rules.integer(1)))
_size = rules.maybe(rules.unsigned64)
_count = Annotated[int, rules.integer()]
_flag = Annotated[bool, rules.boolean]


@dataclass(eq=False)
class RuntimeDefaults(Record, readonly=True):
    """What a model was built for; fills what a ``KvCacheConfig`` leaves open."""

    max_attention_window: Annotated[list[int] | None, rules.maybe(rules.list_of(rules.integer()))] = None
    sink_token_length: Annotated[int | None, rules.maybe(rules.integer())] = None


def _gather_period(value: object, where: str) -> int:
    number: int = rules.integer()(value, where)
    if number <= 0:
        raise CheckError("Attention DP events gather period must be greater than 0")
    return number


@dataclass(eq=False)
class KvCacheConfig(Record, pickled=15, lost=("runtime_defaults",)):
    """The KV cache. ``max_tokens``: how many tokens all running sequences may hold; None: what the runner has."""

    enable_block_reuse: _flag = True
    max_tokens: Annotated[int | None, _positive] = None
    max_attention_window: Annotated[list[int] | None, _windows] = None
    sink_token_length: Annotated[int | None, _positive] = None
    free_gpu_memory_fraction: Annotated[float | None, _fraction] = None
    host_cache_size: Annotated[int | None, _size] = None
    onboard_blocks: _flag = True
    cross_kv_cache_fraction: Annotated[float | None, _fraction] = None
    secondary_offload_min_priority: Annotated[int | None, rules.maybe(rules.integer())] = None
    event_buffer_max_size: Annotated[int, rules.integer(0)] = 0
    _: KW_ONLY
    enable_partial_reuse: _flag = True
    copy_on_partial_reuse: _flag = True
    use_uvm: _flag = False
    attention_dp_events_gather_period_ms: Annotated[int, _gather_period] = 5
    runtime_defaults: Annotated[RuntimeDefaults | None, rules.maybe(rules.instance(RuntimeDefaults))] = None
    max_gpu_total_bytes: Annotated[int, rules.unsigned64] = 0

    def __setattr__(self, name: str, value: object) -> None:
        if name == "runtime_defaults" and name in self.__dict__:
            raise AttributeError(
                "KvCacheConfig.runtime_defaults is read-only; use fill_empty_fields_from_runtime_defaults"
            )
        super().__setattr__(name, value)

    def __post_init__(self) -> None:
        if self.runtime_defaults is not None:
            self.fill_empty_fields_from_runtime_defaults(self.runtime_defaults)
        super().__post_init__()

    def fill_empty_fields_from_runtime_defaults(self, runtime_defaults: RuntimeDefaults) -> None:
        """Set ``max_attention_window`` and ``sink_token_length`` where they are None."""
        if self.max_attention_window is None:
            self.max_attention_window = runtime_defaults.max_attention_window
        if self.sink_token_length is None:
            self.sink_token_length = runtime_defaults.sink_token_length


@dataclass(eq=False)
class PeftCacheConfig(Record, readonly=True, pickled=11, lost=("lora_prefetch_dir",)):
    """The cache of LoRA adapters."""

    num_host_module_layer: _count = 0
    num_device_module_layer: _count = 0
    optimal_adapter_size: _count = 8
    max_adapter_size: _count = 64
    num_put_workers: _count = 1
    num_ensure_workers: _count = 1
    num_copy_streams: _count = 1
    max_pages_per_block_host: _count = 24
    max_pages_per_block_device: _count = 8
    device_cache_percent: Annotated[float | None, rules.maybe(rules.float32())] = None
    host_cache_size: Annotated[int | None, _size] = None
    lora_prefetch_dir: Annotated[str | None, rules.maybe(rules.text)] = None


@dataclass(eq=False)
class CacheTransceiverConfig(Record, pickled=3):
    """How disaggregated servers transfer blocks."""

    backend: Annotated[CacheTransceiverBackendType | None, rules.maybe(rules.instance(CacheTransceiverBackendType))] = (
        None
    )
    max_tokens_in_buffer: Annotated[int | None, _size] = None
    kv_transfer_timeout_ms: Annotated[int | None, rules.maybe(rules.integer())] = None
