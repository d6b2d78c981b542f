"""The KV cache as one slab [layer, key or value, row, KV head, token, head size], and the rows in it.

A window of rows of one layer is contiguous, so it can be bound by its address. In a step the rows in use are packed at
the front: where no new sequence has taken the row of one that ended, the last row moves there.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from repoagent_llm.runner.protocol import AdapterWeights, RunnerInfo, Segment, Seq
from repoagent_llm.types.executor_errors import EngineError

Array = npt.NDArray[Any]


class SlabRows(ABC):
    """Which sequence lies in which row, and how long it is. Where the rows themselves are, its kinds know.

    ``wipe``: what one sequence left behind is cleared before another can come near it.
    """

    def __init__(self, rows: int, *, wipe: bool) -> None:
        self.lengths: npt.NDArray[np.int64] = np.zeros(rows, np.int64)
        self._wipes = wipe
        # Of each row, how far it may have been written.
        self._written: npt.NDArray[np.int64] = np.zeros(rows, np.int64)
        self._rows: list[Seq | None] = []
        self._row_of: dict[Seq, int] = {}
        self._next = 0
        #: Changes whenever a sequence comes, goes, moves, or has other tokens than steps gave it.
        self.version = 0

    @property
    def used(self) -> int:
        """Rows 0 to used - 1 are in use, but for those between them that were freed since the last step."""
        return len(self._rows)

    @property
    def gaps(self) -> int:
        """How many rows between others are free."""
        return len(self._rows) - len(self._row_of)

    def row(self, seq: Seq) -> int:
        """Where a sequence lies now; ``close_gaps`` may move it."""
        return self._row_of[seq]

    def length(self, seq: Seq) -> int:
        """How many tokens a sequence holds."""
        return int(self.lengths[self.row(seq)])

    def truncate(self, seq: Seq, length: int) -> None:
        """Forget all but the first ``length`` tokens of a sequence."""
        self.version += 1
        row = self.row(seq)
        self.lengths[row] = min(length, int(self.lengths[row]))

    def check_room(self, segments: Sequence[Segment], most: int) -> None:
        """Refuse a step after which a sequence would hold more than ``most`` tokens.

        Raises:
            EngineError: one would.
        """
        for segment in segments:
            length = self.length(segment.seq)
            if length + len(segment.tokens) > most:
                raise EngineError(
                    f"sequence of {length} tokens cannot take {len(segment.tokens)} more: "
                    f"this runner holds {most} per sequence"
                )

    def take(self) -> Seq | None:
        """A new sequence in the first free row; None when all are in use."""
        row = self._rows.index(None) if self.gaps else len(self._rows)
        if row == len(self.lengths):
            return None
        self._next += 1
        self.version += 1
        seq = Seq(self._next)
        self._rows[row : row + 1] = [seq]
        self._row_of[seq] = row
        self._wipe(row, 0)
        self.lengths[row] = 0
        return seq

    def free(self, seq: Seq) -> None:
        """Give a row back. The next sequence gets it; nothing moves yet."""
        self.version += 1
        self._rows[self._row_of.pop(seq)] = None
        self._drop_end()

    def close_gaps(self) -> list[tuple[int, int]]:
        """Before a step: move the last rows into those that are free. From where to where they moved."""
        moved = []
        while self.gaps:
            self.version += 1
            hole, last = self._rows.index(None), self._rows.pop()
            assert last is not None
            source = len(self._rows)
            self.copy(source, hole, 0, int(self.lengths[source]))
            self._wipe(hole, int(self.lengths[hole]))
            self._rows[hole] = last
            self._row_of[last] = hole
            self._drop_end()
            moved.append((source, hole))
        return moved

    def _drop_end(self) -> None:
        while self._rows and self._rows[-1] is None:
            self._rows.pop()

    def note(self, start: int, stop: int, tokens: int) -> None:
        """A run writes ``tokens`` tokens behind each of the rows [start, stop)."""
        if self._wipes:
            written = self._written[start:stop]
            np.maximum(written, self.lengths[start:stop] + tokens, out=written)

    @abstractmethod
    def _wipe(self, row: int, start: int) -> None:
        """Clear what may be written of a row from token ``start`` on."""

    @abstractmethod
    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        """Copy tokens [start, stop) of a row; the target's length becomes ``stop``."""

    @abstractmethod
    def reorder(self, rows: Sequence[int], parents: Sequence[int], common: int) -> None:
        """Row ``rows[i]`` gets what row ``rows[parents[i]]`` held after its first ``common`` tokens."""

    @abstractmethod
    def export(self, row: int, start: int, stop: int) -> npt.NDArray[Any]:
        """A copy [layer, 2, KV head, tokens, head size] of tokens [start, stop) on the host."""

    @abstractmethod
    def load(self, row: int, piece: npt.NDArray[Any], tokens: int) -> None:
        """Append the first ``tokens`` tokens of an exported piece."""


class SlabRunner:
    """A ModelRunner over rows, but for its steps. Its kinds set ``_slab`` and ``_info``."""

    _slab: SlabRows
    _info: RunnerInfo

    @property
    def info(self) -> RunnerInfo:
        """See ModelRunner."""
        return self._info

    def open(self) -> Seq | None:
        """See ModelRunner."""
        return self._slab.take()

    def free(self, seq: Seq) -> None:
        """See ModelRunner."""
        self._slab.free(seq)

    def length(self, seq: Seq) -> int:
        """See ModelRunner."""
        return self._slab.length(seq)

    def truncate(self, seq: Seq, length: int) -> None:
        """See ModelRunner."""
        self._slab.truncate(seq, length)

    def fork(self, seq: Seq) -> Seq | None:
        """See ModelRunner."""
        copy = self._slab.take()
        if copy is not None:
            self._slab.copy(self._slab.row(seq), self._slab.row(copy), 0, self.length(seq))
        return copy

    def reorder(self, seqs: Sequence[Seq], parents: Sequence[int], common: int) -> None:
        """See ModelRunner."""
        self._slab.version += 1
        self._slab.reorder([self._slab.row(seq) for seq in seqs], parents, common)

    def export_kv(self, seq: Seq, start: int, stop: int) -> npt.NDArray[Any]:
        """See ModelRunner."""
        return self._slab.export(self._slab.row(seq), start, stop)

    def import_kv(self, seq: Seq, blob: npt.NDArray[Any], tokens: int) -> None:
        """See ModelRunner."""
        self._slab.version += 1
        self._slab.load(self._slab.row(seq), blob, tokens)


class Slab(SlabRows):
    """Rows of keys and values on the host. Memory that was never written costs nothing but address space."""

    def __init__(
        self, *, layers: int, rows: int, kv_heads: int, tokens: int, head_size: int, dtype: Any, wipe: bool = False
    ) -> None:
        super().__init__(rows, wipe=wipe)
        self.data: npt.NDArray[Any] = np.zeros((layers, 2, rows, kv_heads, tokens, head_size), dtype)

    def _wipe(self, row: int, start: int) -> None:
        if self._wipes:
            self.data[:, :, row, :, start : self._written[row]] = 0
            self._written[row] = start

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        self.data[:, :, target, :, start:stop] = self.data[:, :, source, :, start:stop]
        self.lengths[target] = stop
        self.note(target, target + 1, 0)

    def reorder(self, rows: Sequence[int], parents: Sequence[int], common: int) -> None:
        changed = [(rows[i], rows[parent]) for i, parent in enumerate(parents) if i != parent]
        if not changed:
            return
        targets, sources = [target for target, _ in changed], [source for _, source in changed]
        lengths = self.lengths[sources]
        stop = int(lengths.max())
        self.data[:, :, targets, :, common:stop] = self.data[:, :, sources, :, common:stop]
        self.lengths[targets] = lengths

    def export(self, row: int, start: int, stop: int) -> npt.NDArray[Any]:
        return self.data[:, :, row, :, start:stop].copy()

    def load(self, row: int, piece: npt.NDArray[Any], tokens: int) -> None:
        start = int(self.lengths[row])
        self.data[:, :, row, :, start : start + tokens] = piece[:, :, :, :tokens]
        self.lengths[row] = start + tokens
        self.note(row, row + 1, 0)


class AdapterRows:
    """For each row the low-rank matrices of its sequence's adapter, windows of which are contiguous, too.

    Rows without an adapter hold zeros; a window without any adapter is bound with rank 0, so that it costs next to
    nothing. ``sites``: (inputs, outputs) of each linear layer that takes adapters.
    """

    def __init__(self, sites: Mapping[str, tuple[int, int]], rows: int, dtype: Any) -> None:
        self._sites = sites
        self._dtype = np.dtype(dtype)
        self._holds: list[AdapterWeights | None] = [None] * rows
        self._arrays: dict[str, tuple[Array, Array]] = {site: self._allocate(site, 0) for site in sites}

    def _allocate(self, site: str, rank: int) -> tuple[Array, Array]:
        inputs, outputs = self._sites[site]
        rows = len(self._holds)
        return np.zeros((rows, inputs, rank), self._dtype), np.zeros((rows, rank, outputs), self._dtype)

    def any(self, start: int, stop: int) -> bool:
        """Whether a row of the window has an adapter."""
        return any(weights is not None for weights in self._holds[start:stop])

    def window(self, start: int, stop: int) -> dict[str, Array]:
        """The graph's inputs for rows [start, stop)."""
        found = {}
        active = self.any(start, stop)
        for site, (a, b) in self._arrays.items():
            if active:
                found[f"lora.{site}.a"], found[f"lora.{site}.b"] = a[start:stop], b[start:stop]
            else:
                found[f"lora.{site}.a"], found[f"lora.{site}.b"] = a[start:stop, :, :0], b[start:stop, :0]
        return found

    def put(self, row: int, weights: AdapterWeights | None) -> bool:
        """Give a row an adapter, or none. True: arrays were replaced, so what is bound to them must be bound again."""
        if weights is self._holds[row]:
            return False
        before, self._holds[row] = self._holds[row], weights
        replaced = self._fit() if weights is not None else False
        if not replaced:
            self._fill(row, before, weights)
        return replaced

    def held(self, row: int) -> AdapterWeights | None:
        """The adapter of a row."""
        return self._holds[row]

    def move(self, source: int, target: int) -> bool:
        """The target takes over what the source has; the source has nothing afterwards. Like ``put``."""
        weights = self._holds[source]
        self.put(source, None)
        return self.put(target, weights)

    def _fit(self) -> bool:
        """Make room for the largest rank held; give room back when only smaller ones are left."""
        held = [weights for weights in self._holds if weights is not None]
        wanted = {site: max((w[site][0].shape[1] for w in held if site in w), default=0) for site in self._sites}
        sizes = {site: a.shape[2] for site, (a, _) in self._arrays.items()}
        larger = any(wanted[site] > sizes[site] for site in wanted)
        if not larger and not (len(held) == 1 and wanted != sizes):
            return False
        self._arrays = {site: self._allocate(site, rank) for site, rank in wanted.items()}
        for row, weights in enumerate(self._holds):
            if weights is not None:
                self._fill(row, None, weights)
        return True

    def _fill(self, row: int, before: AdapterWeights | None, weights: AdapterWeights | None) -> None:
        for site, (a, b) in self._arrays.items():
            if before is not None and site in before:
                a[row], b[row] = 0, 0
            if weights is not None and site in weights:
                rank = weights[site][0].shape[1]
                a[row, :, :rank], b[row, :rank] = weights[site]


def lora_sites(inputs: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """(inputs, outputs) of the layers for which the graph takes adapters: lora.LAYER.a and lora.LAYER.b."""
    names = [name[len("lora.") : -len(".a")] for name in inputs if name.startswith("lora.") and name.endswith(".a")]
    return {name: (inputs[f"lora.{name}.a"].shape[1], inputs[f"lora.{name}.b"].shape[2]) for name in names}
