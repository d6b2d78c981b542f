"""BlockFiles: which retained blocks of a paged runner are in files, and what these hold."""

import struct
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from repoagent_llm.engine.block_store import BlockStore
from repoagent_llm.engine.page import BlockHash, Marked, Page, PrefixKey, chain_hash
from repoagent_llm.runner.block_pool import BLOCK_TOKENS
from repoagent_llm.runner.paged import PagedRunner
from repoagent_llm.runner.protocol import KvBlob


class BlockFiles:
    """Retained blocks of a paged runner in files. Only those that depend on nothing but their tokens.

    Each begins with the hash of the block before it and its tokens, so that what is there can be reported.
    """

    HEAD_BYTES: Final = 8 + 4 * BLOCK_TOKENS

    def __init__(self, runner: PagedRunner, store: BlockStore) -> None:
        """``store``: for blocks that have ``HEAD_BYTES`` more than the runner's."""
        self._runner = runner
        self._store = store

    def keep(self, page: Page, key: PrefixKey) -> None:
        """Write a new page."""
        plain = [token for token in page.tokens if isinstance(token, int)]
        if len(plain) == BLOCK_TOKENS and key == PrefixKey() and not self._store.has(page.hash):
            head = struct.pack("<Q", page.parent) + np.array(plain, "<i4").tobytes()
            self._store.keep(page.hash, plain, head + self._runner.read_block(page.blob))

    def blocks(self) -> Iterator[tuple[BlockHash, BlockHash, Sequence[int]]]:
        """The blocks that can be found: hash, that of the one before it, tokens. Each comes after the one before it."""
        behind: dict[BlockHash, list[tuple[BlockHash, Sequence[int]]]] = {}
        for number, head in self._store.heads(self.HEAD_BYTES):
            if len(head) == self.HEAD_BYTES:
                parent = BlockHash(int.from_bytes(head[:8], "little"))
                tokens: tuple[int, ...] = tuple(np.frombuffer(head, "<i4", offset=8).tolist())
                if chain_hash(parent, tokens) == number:
                    behind.setdefault(parent, []).append((BlockHash(number), tokens))
        ends = [PrefixKey().root()]
        while ends:
            parent = ends.pop()
            for name, its in behind.pop(parent, ()):
                yield name, parent, its
                ends.append(name)

    def load(self, name: BlockHash, tokens: tuple[Marked, ...], key: PrefixKey) -> bytes | None:
        """The content of a page, if there is a file of it."""
        plain = [token for token in tokens if isinstance(token, int)]
        if len(plain) < BLOCK_TOKENS or key != PrefixKey():
            return None
        data = self._store.load(name, plain)
        return None if data is None else data[self.HEAD_BYTES :]

    def has(self, name: BlockHash) -> bool:
        """Whether there is a file of that page."""
        return self._store.has(name)

    @property
    def full(self) -> bool:
        """Whether a page must go before one can come back."""
        return self._runner.pool.free == 0

    def restore(self, data: bytes) -> KvBlob:
        """A blob with that content."""
        return self._runner.restore(data)

    def close(self) -> None:
        """Write what waits."""
        self._store.close()
