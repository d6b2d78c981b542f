"""Retained pages: how they are named, and which of them goes first.

A page is up to 32 tokens; its hash covers its tokens with their extra ids, everything before them, the adapter and
the salt. Only full pages have children.
"""

import hashlib
import heapq
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NewType

import numpy as np

from repoagent_llm.runner.protocol import KvBlob
from repoagent_llm.types.cache_config import DEFAULT_PRIORITY

BlockHash = NewType("BlockHash", int)
# A token; with an extra id, which distinguishes what one token stands for in different prompts, a pair.
Marked = int | tuple[int, int]
# So many entries may be out of date, beside as many as there are pages, before all are made again.
_SPARE: Final = 64


@dataclass(frozen=True, slots=True)
class PrefixKey:
    """What must be equal besides the tokens."""

    lora_id: int | None = None
    salt: int | None = None
    #: Distinguishes adapters that one task id had one after the other.
    lora_digest: int = 0

    def root(self) -> BlockHash:
        """The hash that a chain starts from."""
        head = struct.pack("<qQqq", self.lora_id is not None, self.lora_id or 0, self.salt is not None, 0)
        return _digest(head + struct.pack("<QQ", self.salt or 0, self.lora_digest))


def chain_hash(parent: BlockHash, tokens: tuple[Marked, ...]) -> BlockHash:
    """The hash of a page, by that of the page before it."""
    plain = [token[0] if isinstance(token, tuple) else token for token in tokens]
    extras = [struct.pack("<iQ", place, token[1]) for place, token in enumerate(tokens) if isinstance(token, tuple)]
    return _digest(struct.pack("<Q", parent) + np.array(plain, np.int32).tobytes() + b"".join(extras))


def _digest(data: bytes) -> BlockHash:
    return BlockHash(int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little"))


@dataclass(slots=True, eq=False)
class Page:
    """A retained piece of the cache. ``used`` counts up: no two pages have the same."""

    hash: BlockHash
    parent: BlockHash
    tokens: tuple[Marked, ...]
    blob: KvBlob
    priority: int
    expires: float | None
    used: int
    children: list["Page"] = field(default_factory=list)

    def priority_at(self, now: float) -> int:
        """The default priority when its time is over."""
        return DEFAULT_PRIORITY if self.expires is not None and now >= self.expires else self.priority


class LeafOrder:
    """The leaves among ``pages``: the lowest priority first, of equal ones the one unused longest.

    Entries of its heaps are never changed. A page that was used again, or that is a leaf no more, no longer fits an
    earlier entry, which is thrown away when it comes to the top.
    """

    def __init__(self, pages: Mapping[BlockHash, Page], clock: Callable[[], float]) -> None:
        self._pages = pages
        self._clock = clock
        self._order: list[tuple[int, int, BlockHash]] = []
        self._expiring: list[tuple[float, BlockHash]] = []

    def put(self, page: Page) -> None:
        """A page is new, was used or changed, or has lost its last child."""
        if page.children:
            return
        heapq.heappush(self._order, (page.priority_at(self._clock()), page.used, page.hash))
        if page.expires is not None:
            heapq.heappush(self._expiring, (page.expires, page.hash))
        if len(self._order) + len(self._expiring) > 4 * (len(self._pages) + _SPARE):
            self._start_anew()

    def _start_anew(self) -> None:
        leaves, now = [page for page in self._pages.values() if not page.children], self._clock()
        self._order = [(page.priority_at(now), page.used, page.hash) for page in leaves]
        self._expiring = [(page.expires, page.hash) for page in leaves if page.expires is not None]
        heapq.heapify(self._order)
        heapq.heapify(self._expiring)

    def first(self, keep: BlockHash | None = None) -> Page | None:
        """The leaf to give up, which is not ``keep``; None: there is none."""
        now = self._clock()
        self._expire(now)
        kept = None
        while self._order:
            priority, used, name = self._order[0]
            page = self._pages.get(name)
            fits = page is not None and not page.children and (page.priority_at(now), page.used) == (priority, used)
            if fits and name != keep:
                break
            entry = heapq.heappop(self._order)
            if fits:
                kept = entry
        else:
            page = None
        if kept is not None:
            heapq.heappush(self._order, kept)
        return page

    def _expire(self, now: float) -> None:
        """Pages whose time is over stand elsewhere in the order."""
        while self._expiring and self._expiring[0][0] <= now:
            page = self._pages.get(heapq.heappop(self._expiring)[1])
            if page is not None and not page.children:
                heapq.heappush(self._order, (page.priority_at(now), page.used, page.hash))
