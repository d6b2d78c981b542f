"""KV-cache events, under the module name that callers know."""

from repoagent.executor.engine.kv_event_buffer import KVCacheEventManager
from repoagent.executor.types.kv_events import (
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
