"""The buffer of KV-cache events, filled by the engine's thread and drained by the caller's."""

import threading
from collections import deque
from datetime import timedelta

from repoagent_llm.types.cache_config import (
    KVCacheCreatedData,
    KVCacheEvent,
    KVCacheEventData,
    KVCacheEventDiffInt,
    KVCacheRemovedData,
    KVCacheStoredBlockData,
    KVCacheStoredData,
    KVCacheUpdatedData,
)


class KVCacheEventManager:
    """Hands events out. The oldest are dropped when more than the buffer's size are waiting."""

    def __init__(self, size: int, window_size: int) -> None:
        self._events: deque[KVCacheEvent] = deque(maxlen=size)
        self._window_size = window_size
        self._next_id = 0
        self._changed = threading.Condition()

    def add(self, data: KVCacheEventData) -> None:
        """Append an event."""
        with self._changed:
            self._events.append(KVCacheEvent(self._next_id, data, self._window_size))
            self._next_id += 1
            self._changed.notify_all()

    def get_latest_events(self, timeout_ms: float | timedelta | None = None) -> list[KVCacheEvent]:
        """All events since the last call; waits up to the timeout (milliseconds) for the first one, else empty."""
        seconds = timeout_ms.total_seconds() if isinstance(timeout_ms, timedelta) else (timeout_ms or 0) / 1000
        with self._changed:
            if not self._events and seconds > 0:
                self._changed.wait_for(lambda: bool(self._events), min(seconds, threading.TIMEOUT_MAX))
            events = list(self._events)
            self._events.clear()
        return events


class KvEventSink:
    """What the cache reports; does nothing without a manager.

    Blocks that are stored one behind the other are one event, which comes when another event does, or with ``flush``.
    """

    def __init__(self, manager: KVCacheEventManager | None = None) -> None:
        self._manager = manager
        self._stored: KVCacheStoredData | None = None

    @property
    def active(self) -> bool:
        """Whether anything is reported."""
        return self._manager is not None

    def created(self, blocks: int, retained: int) -> None:
        """The cache exists."""
        self._add(KVCacheCreatedData([blocks, retained]))

    def stored(self, parent: int | None, block: KVCacheStoredBlockData) -> None:
        """A block can be reused from now on."""
        if self._manager is None:
            return
        if self._stored is not None and self._stored.blocks[-1].block_hash == parent:
            self._stored.blocks.append(block)
            return
        self.flush()
        self._stored = KVCacheStoredData(parent, [block])

    def flush(self) -> None:
        """What was stored is reported now."""
        stored, self._stored = self._stored, None
        if stored is not None and self._manager is not None:
            self._manager.add(stored)

    def removed(self, block_hash: int) -> None:
        """A block cannot be reused any more."""
        self._add(KVCacheRemovedData([block_hash]))

    def reprioritised(self, block_hash: int, old: int, new: int) -> None:
        """A block's priority changed."""
        self._add(KVCacheUpdatedData(block_hash, None, KVCacheEventDiffInt(old, new)))

    def moved(self, block_hash: int, old: int, new: int) -> None:
        """A block is in memory (level 0), or in a file alone (1)."""
        self._add(KVCacheUpdatedData(block_hash, KVCacheEventDiffInt(old, new)))

    def _add(self, data: KVCacheEventData) -> None:
        self.flush()
        if self._manager is not None:
            self._manager.add(data)
