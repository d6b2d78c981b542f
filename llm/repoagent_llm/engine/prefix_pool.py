"""PrefixPool: pieces of the KV cache that outlive their request, found again by a chain of hashes.

When the pool is full, the leaf with the lowest priority goes, the one unused longest first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from repoagent_llm.engine.block_files import BlockFiles
from repoagent_llm.engine.kv_event_buffer import KvEventSink
from repoagent_llm.engine.page import BlockHash, LeafOrder, Marked, Page, PrefixKey, chain_hash
from repoagent_llm.runner.block_pool import BLOCK_TOKENS
from repoagent_llm.runner.protocol import KvBlob
from repoagent_llm.types.cache_config import DEFAULT_PRIORITY, KVCacheStoredBlockData, UniqueToken

_LOOKS: Final = 2
"""Blocks in files that are looked at for each that goes there: so a file that has gone is found in time."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How dearly a page is kept. ``seconds``: after that long it falls back to the default priority."""

    priority: int = DEFAULT_PRIORITY
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """Use the first ``tokens`` tokens of a page."""

    page: Page
    tokens: int


class PrefixPool:
    """Pages by hash. ``pages`` 0 turns the pool off. ``drop``: called with the blob of a page that is given up.

    ``disk``: where pages are written, too, and come back from.
    """

    def __init__(
        self,
        pages: int,
        clock: Callable[[], float],
        *,
        partial: bool = True,
        events: KvEventSink,
        drop: Callable[[KvBlob], None] | None = None,
        disk: BlockFiles | None = None,
    ) -> None:
        self._capacity = pages
        self._clock = clock
        self._partial = partial
        self._events = events
        self._drop = drop
        self._disk = disk
        self._filed: dict[BlockHash, None] = {}  # reported as in a file alone; the next to be looked at first
        self._pages: dict[BlockHash, Page] = {}
        self._first: dict[BlockHash, list[Page]] = {}
        self._leaves = LeafOrder(self._pages, clock)
        self._uses = 0
        if disk is not None and events.active:
            self._report_files(disk)

    def _report_files(self, disk: BlockFiles) -> None:
        """What is in files from before can be reused."""
        root = PrefixKey().root()
        for name, parent, tokens in disk.blocks():
            self._filed[name] = None
            unique = [UniqueToken(token) for token in tokens]
            block = KVCacheStoredBlockData(name, unique, None, 1, DEFAULT_PRIORITY)
            self._events.stored(None if parent == root else parent, block)
        self._events.flush()

    def __len__(self) -> int:
        return len(self._pages)

    def match(self, tokens: Sequence[Marked], key: PrefixKey) -> list[Match]:
        """The longest retained prefix of ``tokens``, leaving at least one token to compute."""
        found: list[Match] = []
        limit, start, parent = len(tokens) - 1, 0, key.root()
        while start < limit:
            wanted = tuple(tokens[start : min(start + BLOCK_TOKENS, limit)])
            page, common = self._best_child(parent, wanted)
            if common < BLOCK_TOKENS and (restored := self._restored(parent, wanted, key)) is not None:
                page, common = restored, BLOCK_TOKENS
            if page is None or common == 0 or (common < BLOCK_TOKENS and not self._partial):
                break
            self._use(page)
            found.append(Match(page, common))
            if common < BLOCK_TOKENS:
                break
            start, parent = start + common, page.hash
        return found

    def _restored(self, parent: BlockHash, wanted: tuple[Marked, ...], key: PrefixKey) -> Page | None:
        """A page that comes back from its file. ``parent`` stays, and so does all that leads to it."""
        if self._disk is None or len(wanted) < BLOCK_TOKENS:
            return None
        name = chain_hash(parent, wanted)
        data = self._disk.load(name, wanted, key)
        if data is None:
            self._look_at(name)
            return None
        while self._disk.full:
            victim = self._leaves.first(parent)
            if victim is None:
                return None
            self._remove(victim)
        self._add(name, parent, wanted, key, partial(self._disk.restore, data), Retention())
        self._events.flush()
        return self._pages.get(name)

    def close(self) -> None:
        """Write what waits for a disk."""
        if self._disk is not None:
            self._disk.close()

    def _best_child(self, parent: BlockHash, wanted: tuple[Marked, ...]) -> tuple[Page | None, int]:
        full = self._pages.get(chain_hash(parent, wanted))
        if full is not None and full.tokens == wanted:
            return full, len(wanted)
        best: tuple[Page | None, int] = (None, 0)
        for page in self._children(parent):
            common = _common(page.tokens, wanted)
            if common > best[1]:
                best = (page, common)
        return best

    def _children(self, parent: BlockHash) -> list[Page]:
        page = self._pages.get(parent)
        return self._first.get(parent, []) if page is None else page.children

    def store(
        self,
        tokens: Sequence[Marked],
        key: PrefixKey,
        export: Callable[[int, int], KvBlob],
        retention: Callable[[int], Retention | None],
    ) -> None:
        """Keep all pages of ``tokens``; ``export(start, stop)`` is called for those that are not there yet.

        ``retention(start)``: None leaves a page that is there as dear as it is.
        """
        try:
            self._store(tokens, key, export, retention)
        finally:
            self._events.flush()

    def _store(
        self,
        tokens: Sequence[Marked],
        key: PrefixKey,
        export: Callable[[int, int], KvBlob],
        retention: Callable[[int], Retention | None],
    ) -> None:
        parent = key.root()
        for start in range(0, len(tokens), BLOCK_TOKENS):
            piece = tuple(tokens[start : start + BLOCK_TOKENS])
            if len(piece) < BLOCK_TOKENS and not self._partial:
                return
            name = chain_hash(parent, piece)
            page = self._pages.get(name)
            if page is not None:
                self._touch(page, retention(start))
                parent = name
                continue
            kept = retention(start) or Retention()
            if not self._add(name, parent, piece, key, partial(export, start, start + len(piece)), kept):
                return
            parent = name

    def _touch(self, page: Page, retention: Retention | None) -> None:
        if retention is not None:
            if page.priority != retention.priority:
                self._events.reprioritised(page.hash, page.priority, retention.priority)
                page.priority = retention.priority
            page.expires = None if retention.seconds is None else self._clock() + retention.seconds
        self._use(page)

    def _use(self, page: Page) -> None:
        self._uses += 1
        page.used = self._uses
        self._leaves.put(page)

    def _add(
        self,
        name: BlockHash,
        parent: BlockHash,
        tokens: tuple[Marked, ...],
        key: PrefixKey,
        export: Callable[[], KvBlob],
        retention: Retention,
    ) -> bool:
        """Add a page if there is room for one of its priority, and its parent is still there."""
        siblings = self._children(parent)
        if any(_common(page.tokens, tokens) == len(tokens) for page in siblings):
            return False  # a longer page holds these tokens already
        self._replace_shorter(siblings, tokens)
        if not self._make_room(retention.priority, parent):
            return False
        self._uses += 1
        expires = None if retention.seconds is None else self._clock() + retention.seconds
        page = Page(name, parent, tokens, export(), retention.priority, expires, self._uses)
        self._pages[name] = page
        if parent in self._pages:
            self._pages[parent].children.append(page)
        else:
            self._first.setdefault(parent, []).append(page)
        self._leaves.put(page)
        if self._disk is not None:
            self._disk.keep(page, key)
        if name in self._filed:
            del self._filed[name]
            self._events.moved(name, 1, 0)
            return True
        unique = [UniqueToken(*token) if isinstance(token, tuple) else UniqueToken(token) for token in tokens]
        block = KVCacheStoredBlockData(name, unique, key.lora_id, 0, retention.priority)
        self._events.stored(parent if parent in self._pages else None, block)
        return True

    def _replace_shorter(self, siblings: list[Page], tokens: tuple[Marked, ...]) -> None:
        for page in list(siblings):
            if len(page.tokens) < len(tokens) and tokens[: len(page.tokens)] == page.tokens:
                self._remove(page)

    def _make_room(self, priority: int, keep: BlockHash) -> bool:
        while len(self._pages) >= self._capacity:
            victim = self._leaves.first(keep)
            if victim is None or victim.priority_at(self._clock()) > priority:
                return False
            self._remove(victim)
        return True

    def reclaim(self) -> bool:
        """Give up the leaf that is kept least dearly, because sequences need its memory; False: there is none."""
        victim = self._leaves.first()
        if victim is not None:
            self._remove(victim)
        return victim is not None

    def _remove(self, page: Page) -> None:
        del self._pages[page.hash]
        if self._drop is not None:
            self._drop(page.blob)
        siblings = self._children(page.parent)
        siblings.remove(page)
        if not siblings:
            self._first.pop(page.parent, None)
            if page.parent in self._pages:
                self._leaves.put(self._pages[page.parent])
        if self._disk is None or not self._disk.has(page.hash):
            self._events.removed(page.hash)
            return
        self._events.moved(page.hash, 0, 1)
        self._filed[page.hash] = None
        for name in list(islice(self._filed, _LOOKS)):
            self._look_at(name)

    def _look_at(self, name: BlockHash) -> None:
        """Report a block whose file has gone: the folder removes files by itself."""
        if name in self._filed:
            del self._filed[name]
            if self._disk is not None and self._disk.has(name):
                self._filed[name] = None
            else:
                self._events.removed(name)


def _common(left: tuple[Marked, ...], right: tuple[Marked, ...]) -> int:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
