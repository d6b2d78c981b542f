"""Events of the KV cache: what was created, stored, removed and updated."""

from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "KVCacheCreatedData",
    "KVCacheEvent",
    "KVCacheEventDiffInt",
    "KVCacheRemovedData",
    "KVCacheStoredBlockData",
    "KVCacheStoredData",
    "KVCacheUpdatedData",
    "UniqueToken",
]


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
    """One block that can be reused from now on. ``cache_level`` is 0: retained blocks have one level."""

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
    """A block whose level or priority changed; None where it did not."""

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
