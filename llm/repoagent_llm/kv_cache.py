"""KV-cache events, under the module name that callers know."""

from repoagent_llm.engine.kv_event_buffer import KVCacheEventManager
from repoagent_llm.types.cache_config import (
    KVCacheCreatedData,
    KVCacheEvent,
    KVCacheEventDiffInt,
    KVCacheRemovedData,
    KVCacheStoredBlockData,
    KVCacheStoredData,
    KVCacheUpdatedData,
    UniqueToken,
)

__all__ = [
    "KVCacheCreatedData",
    "KVCacheEvent",
    "KVCacheEventDiffInt",
    "KVCacheEventManager",
    "KVCacheRemovedData",
    "KVCacheStoredBlockData",
    "KVCacheStoredData",
    "KVCacheUpdatedData",
    "UniqueToken",
]
