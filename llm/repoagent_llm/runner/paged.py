"""PagedRunner: a ModelRunner whose sequences are tables of blocks, over a model that takes one packed run per step.

Forks, beams and retained prefixes share blocks. A block that several hold is copied before one of them writes into it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from repoagent_llm.runner.block_pool import BLOCK_TOKENS, BlockPool, blocks_for
from repoagent_llm.runner.protocol import AdapterWeights, Logits, RunnerInfo, Segment, Seq, StepResult
from repoagent_llm.types.executor_errors import EngineError


@dataclass(slots=True)
class PackedStep:
    """Tokens of any mix of sequences, one sequence behind the other.

    ``tokens``, ``positions`` [T]. ``past`` [S]: tokens that each sequence holds before. ``begins`` [S + 1]: where its
    tokens start. ``blocks``: the tables, those of sequence i at ``block_begins[i : i + 2]``. ``longest``: the most
    tokens that a sequence holds afterwards. ``rows`` [R]: numbers of the tokens whose logits are wanted.
    ``adapters``: for each sequence its adapter. ``places``, ``embeddings``: rows that stand in for the embeddings of
    tokens of these numbers. ``extras``: the named tensors that are wanted.
    """

    tokens: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    past: npt.NDArray[np.int32]
    begins: npt.NDArray[np.int32]
    blocks: npt.NDArray[np.int32]
    block_begins: npt.NDArray[np.int32]
    longest: int
    rows: npt.NDArray[np.int64]
    adapters: Sequence[AdapterWeights | None] = ()
    places: npt.NDArray[np.int64] | None = None
    embeddings: npt.NDArray[Any] | None = None
    extras: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PackedResult:
    """``logits`` [R, vocabulary] and ``argmax`` [R], overwritten by the next run; ``extras``: [T, ...] by name."""

    logits: npt.NDArray[np.float32]
    argmax: npt.NDArray[np.int64] | None = None
    extras: dict[str, npt.NDArray[Any]] = field(default_factory=dict)


class PackedModel(Protocol):
    """A model over a pool of blocks of 32 tokens, all layers of a block under one number."""

    blocks: int
    #: Whether a block's tokens can be copied one by one; otherwise they are rounded together.
    divisible: bool
    #: How many tokens, itself included, a token attends to in any layer; 0: to all before it.
    window: int

    @property
    def info(self) -> RunnerInfo:
        """See ModelRunner."""

    def run(self, step: PackedStep) -> PackedResult:
        """Compute, and write keys and values behind what each sequence holds."""

    def copy_block(self, source: int, target: int, start: int, stop: int) -> None:
        """Copy tokens [start, stop) of a block; all of it where blocks are not divisible."""

    @property
    def identity(self) -> str:
        """What a block's content depends on beside its tokens: weights, precision, what computes."""

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, of all layers."""

    def read_block(self, block: int) -> bytes:
        """What all layers hold in a block."""

    def write_block(self, block: int, data: bytes) -> None:
        """Put back what :meth:`read_block` gave."""

    def clear_block(self, block: int) -> None:
        """Make all values of a block finite. What lies behind a sequence's end is read, and multiplied by zero."""

    def end(self) -> None:
        """See EndableRunner."""

    def renew(self) -> None:
        """See EndableRunner."""

    def close(self) -> None:
        """See ModelRunner."""


@dataclass(frozen=True, slots=True)
class HeldBlocks:
    """A piece of the cache that is retained: ``tokens`` tokens, the first at ``offset`` of the first block.

    ``lost``: so many whole blocks before ``blocks`` were behind the window, and are there no more.
    """

    blocks: tuple[int, ...]
    offset: int
    tokens: int
    lost: int = 0


@dataclass(slots=True)
class _Sequence:
    """``table``: the blocks from number ``first`` on; those before it are behind the window."""

    table: list[int] = field(default_factory=list)
    length: int = 0
    adapter: AdapterWeights | None = None
    first: int = 0

    def copy(self) -> "_Sequence":
        return _Sequence(list(self.table), self.length, self.adapter, self.first)

    def blocks_to(self, tokens: int) -> int:
        """How many of the table's blocks the first ``tokens`` tokens take."""
        return blocks_for(tokens) - self.first


class PagedRunner:
    """An EndableRunner and, where its model is one, an AdaptableRunner."""

    def __init__(self, model: PackedModel) -> None:
        self.pool = BlockPool(model.blocks)
        self.divisible = model.divisible
        self.window = model.window
        self._model = model
        self._info = model.info
        self._sequences: dict[Seq, _Sequence] = {}
        self._next = 0
        self._written: set[int] = set()

    @property
    def info(self) -> RunnerInfo:
        """See ModelRunner."""
        return self._info

    def open(self) -> Seq | None:
        """See ModelRunner."""
        if len(self._sequences) >= self._info.max_sequences:
            return None
        self._next += 1
        seq = Seq(self._next)
        self._sequences[seq] = _Sequence()
        return seq

    def free(self, seq: Seq) -> None:
        """See ModelRunner."""
        self.pool.drop(self._sequences.pop(seq).table)

    def adapt(self, seq: Seq, weights: AdapterWeights) -> None:
        """See AdaptableRunner."""
        self._sequences[seq].adapter = weights

    def length(self, seq: Seq) -> int:
        """See ModelRunner."""
        return self._sequences[seq].length

    def start(self, seq: Seq) -> int:
        """The first token whose keys and values are still there; those before it are behind the window."""
        return self._sequences[seq].first * BLOCK_TOKENS

    def keeps(self, seq: Seq, tokens: int) -> bool:
        """Whether it holds what another needs that goes on behind its first ``tokens`` tokens."""
        held = self._sequences[seq]
        return held.length >= tokens and held.first <= self._behind(tokens)

    def held(self, seqs: Sequence[Seq]) -> int:
        """How many blocks these sequences hold together, shared ones counted once."""
        if len(seqs) == 1:
            return len(self._sequences[seqs[0]].table)
        return len({block for seq in seqs for block in self._sequences[seq].table})

    def truncate(self, seq: Seq, length: int) -> None:
        """See ModelRunner."""
        held = self._sequences[seq]
        length = min(length, held.length)
        if length and held.first > self._behind(length):
            raise EngineError(f"the tokens before token {self.start(seq)} of this sequence were given back")
        keep = held.blocks_to(length) if length else 0
        self.pool.drop(held.table[keep:])
        del held.table[keep:]
        held.length, held.first = length, held.first if length else 0

    def fork(self, seq: Seq) -> Seq | None:
        """See ModelRunner."""
        copy = self.open()
        if copy is not None:
            held = self._sequences[seq]
            self.pool.share(held.table)
            self._sequences[copy] = held.copy()
        return copy

    def reorder(self, seqs: Sequence[Seq], parents: Sequence[int], common: int) -> None:
        """See ModelRunner; nothing is copied, so what is common does not matter."""
        before = [self._sequences[seq] for seq in seqs]
        after = [before[parent].copy() for parent in parents]
        for held in after:
            self.pool.share(held.table)
        for held in before:
            self.pool.drop(held.table)
        self._sequences.update(zip(seqs, after, strict=True))

    def export_kv(self, seq: Seq, start: int, stop: int) -> HeldBlocks:
        """See ModelRunner; the piece holds its blocks until :meth:`drop_kv`."""
        held, first = self._sequences[seq], start // BLOCK_TOKENS
        lost = max(0, held.first - first)
        if lost and start:
            raise EngineError("what is behind the window of a sequence is there no more")
        blocks = tuple(held.table[max(0, first - held.first) : held.blocks_to(stop)])
        self.pool.retain(blocks)
        return HeldBlocks(blocks, start - first * BLOCK_TOKENS, stop - start, lost)

    def drop_kv(self, blob: HeldBlocks) -> None:
        """Give an exported piece back."""
        self.pool.release(blob.blocks)

    @property
    def identity(self) -> str:
        """See PackedModel."""
        return self._model.identity

    @property
    def block_bytes(self) -> int:
        """See PackedModel."""
        return self._model.block_bytes

    def read_block(self, blob: HeldBlocks) -> bytes:
        """The content of a piece that is one block."""
        return self._model.read_block(blob.blocks[0])

    def restore(self, data: bytes) -> HeldBlocks:
        """A piece of one block with that content; raises ``EngineError`` where there is no room for it."""
        blocks = self._take(1)
        try:
            self._model.write_block(blocks[0], data)
            self.pool.retain(blocks)
        finally:
            self.pool.drop(blocks)
        return HeldBlocks(tuple(blocks), 0, BLOCK_TOKENS)

    def import_kv(self, seq: Seq, blob: HeldBlocks, tokens: int) -> None:
        """See ModelRunner. Whole blocks are shared, what begins within a block is copied."""
        held, pool = self._sequences[seq], self.pool
        first = 0
        if blob.lost:
            if held.length or blob.lost > self._behind(tokens):
                raise EngineError("a piece whose start is behind the window belongs at the start of a sequence, whole")
            held.first = blob.lost
        if blob.offset:
            if not self.divisible:
                raise EngineError("tokens of a block that are rounded together cannot be copied one by one")
            if held.length % BLOCK_TOKENS != blob.offset:
                raise EngineError("a piece of the KV cache belongs at the same place of a block that it had before")
            first = min(tokens, BLOCK_TOKENS - blob.offset)
            self._make_room(held, first)
            self._model.copy_block(blob.blocks[0], held.table[-1], blob.offset, blob.offset + first)
        shared = blob.blocks[first > 0 : blocks_for(blob.offset + tokens) - blob.lost]
        pool.share(shared)
        held.table += shared
        held.length += tokens

    def step(self, segments: Sequence[Segment]) -> StepResult:
        """See ModelRunner."""
        try:
            step, rows = self._pack(segments)
            found = self._model.run(step)
        except BaseException:
            for segment in segments:
                self.truncate(segment.seq, self.length(segment.seq))  # the blocks that it was to write into
            raise
        for segment in segments:
            self._sequences[segment.seq].length += len(segment.tokens)
        extras = [
            {name: found.extras[name][start:stop].copy() for name in segment.extras}
            for segment, start, stop in zip(segments, step.begins[:-1], step.begins[1:], strict=True)
        ]
        return StepResult(found.logits, rows, found.argmax, extras)

    def end(self) -> None:
        """See EndableRunner."""
        self._model.end()

    def renew(self) -> None:
        """See EndableRunner."""
        self._model.renew()

    def close(self) -> None:
        """See ModelRunner."""
        self._model.close()

    def _pack(self, segments: Sequence[Segment]) -> tuple[PackedStep, list[slice]]:
        """One run for all segments, and for each the slice of its rows of logits."""
        held = [self._sequences[segment.seq] for segment in segments]
        counts = [len(segment.tokens) for segment in segments]
        for sequence, count in zip(held, counts, strict=True):
            self._check_length(sequence, count)
        for sequence, count in zip(held, counts, strict=True):
            self._make_room(sequence, count)
        begins = _sums(counts)
        wanted, slices = _rows(segments, begins)
        past = np.array([sequence.length for sequence in held], np.int32)
        # What is behind the window is masked, so that any block will do for it.
        tables = [
            sequence.table[:1] * sequence.first + sequence.table[: sequence.blocks_to(sequence.length + n)]
            for sequence, n in zip(held, counts, strict=True)
        ]
        places, embeddings = _embeddings(segments, begins)
        step = PackedStep(
            tokens=np.concatenate([segment.tokens for segment in segments]).astype(np.int64),
            positions=np.arange(begins[-1], dtype=np.int64) + np.repeat(past - begins[:-1], counts),
            past=past,
            begins=begins,
            blocks=np.array([block for table in tables for block in table], np.int32),
            block_begins=_sums([len(table) for table in tables]),
            longest=max(sequence.length + n for sequence, n in zip(held, counts, strict=True)),
            rows=wanted,
            adapters=[sequence.adapter for sequence in held],
            places=places,
            embeddings=embeddings,
            extras=tuple(dict.fromkeys(name for segment in segments for name in segment.extras)),
        )
        return step, slices

    def _check_length(self, held: _Sequence, more: int) -> None:
        if held.length + more > self._info.max_seq_len:
            raise EngineError(
                f"sequence of {held.length} tokens cannot take {more} more: "
                f"this runner holds {self._info.max_seq_len} per sequence"
            )

    def _make_room(self, held: _Sequence, more: int) -> None:
        """See that blocks for ``more`` tokens are there, and that they are this sequence's alone.

        Blocks behind the window are given back now, not before: a text may have been shortened since.
        """
        behind = self._behind(held.length) - held.first
        if behind > 0:
            self.pool.drop(held.table[:behind])
            del held.table[:behind]
            held.first += behind
        last, filled = divmod(held.length, BLOCK_TOKENS)
        last -= held.first
        if filled and self.pool.shared(held.table[last]):
            (own,) = self._take(1)
            with self._back_on_failure([own]):
                self._model.copy_block(held.table[last], own, 0, filled)
            self.pool.drop([held.table[last]])
            held.table[last] = own
        missing = held.blocks_to(held.length + more) - len(held.table)
        if missing > 0:
            held.table += self._take(missing)

    def _behind(self, length: int) -> int:
        """How many blocks no token from number ``length`` on attends to."""
        return max(0, length + 1 - self.window) // BLOCK_TOKENS if self.window else 0

    def _take(self, count: int) -> list[int]:
        """Blocks of which every value is finite, whatever was written into them before."""
        taken = self.pool.take(count)
        with self._back_on_failure(taken):
            for block in self._written.intersection(taken):
                self._model.clear_block(block)
        self._written.update(taken)
        return taken

    @contextmanager
    def _back_on_failure(self, blocks: Sequence[int]) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.pool.drop(blocks)
            raise


def _sums(counts: Sequence[int]) -> npt.NDArray[np.int32]:
    """0, and the sum of the first, of the first two, ..."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def _rows(segments: Sequence[Segment], begins: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int64], list[slice]]:
    """Numbers of the tokens whose logits are wanted, and for each segment where it finds its own among them."""
    wanted: list[int] = []
    slices = []
    for segment, start, stop in zip(segments, begins[:-1].tolist(), begins[1:].tolist(), strict=True):
        first = {Logits.ALL: start, Logits.LAST: stop - 1, Logits.NONE: stop}[segment.logits]
        slices.append(slice(len(wanted), len(wanted) + stop - first))
        wanted += range(first, stop)
    return np.array(wanted, np.int64), slices


def _embeddings(
    segments: Sequence[Segment], begins: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int64] | None, npt.NDArray[Any] | None]:
    given = [(start, s.embeddings) for start, s in zip(begins[:-1], segments, strict=True) if s.embeddings is not None]
    if not given:
        return None, None
    return np.concatenate([start + e.places for start, e in given]), np.concatenate([e.rows for _, e in given])
