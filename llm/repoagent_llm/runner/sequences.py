"""The sequences of a runner on ONNX Runtime: rows of a slab, and the adapters that go with them."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from repoagent_llm.runner.adapter_rows import AdapterRows
from repoagent_llm.runner.protocol import AdapterWeights, RunnerInfo, Seq
from repoagent_llm.runner.slab import Slab


class OrtSequences:
    """What a runner does with its sequences between two steps."""

    def __init__(self, slab: Slab, adapters: AdapterRows, info: RunnerInfo) -> None:
        self._slab = slab
        self._adapters = adapters
        self._info = info

    def forget_layout(self) -> None:
        """Called where rows are not any more as the last step left them."""

    def forget_bindings(self) -> None:
        """Called where arrays that are bound are about to be replaced."""

    @property
    def info(self) -> RunnerInfo:
        """See ModelRunner."""
        return self._info

    def open(self) -> Seq | None:
        """See ModelRunner."""
        return self._slab.take()

    def free(self, seq: Seq) -> None:
        """See ModelRunner."""
        row = self._slab.row(seq)
        self._slab.free(seq)
        if self._info.lora is not None:
            self._adapters.put(row, None)
            if row < self._slab.used:  # the last row lies there now
                self._bind_anew(self._adapters.move(self._slab.used, row))

    def adapt(self, seq: Seq, weights: AdapterWeights) -> None:
        """See AdaptableRunner."""
        self._bind_anew(self._adapters.put(self._slab.row(seq), weights))
        self.forget_layout()

    def _bind_anew(self, replaced: bool) -> None:
        if replaced:
            self.forget_bindings()

    def length(self, seq: Seq) -> int:
        """See ModelRunner."""
        return self._slab.length(seq)

    def truncate(self, seq: Seq, length: int) -> None:
        """See ModelRunner."""
        self._slab.truncate(seq, length)
        self.forget_layout()

    def fork(self, seq: Seq) -> Seq | None:
        """See ModelRunner."""
        copy = self._slab.take()
        if copy is not None:
            self._slab.copy(self._slab.row(seq), self._slab.row(copy), 0, self.length(seq))
            if self._info.lora is not None:
                self._bind_anew(self._adapters.put(self._slab.row(copy), self._adapters.held(self._slab.row(seq))))
        return copy

    def reorder(self, seqs: Sequence[Seq], parents: Sequence[int], common: int) -> None:
        """See ModelRunner."""
        self._slab.reorder([self._slab.row(seq) for seq in seqs], parents, common)
        self.forget_layout()

    def export_kv(self, seq: Seq, start: int, stop: int) -> npt.NDArray[Any]:
        """See ModelRunner."""
        return self._slab.export(self._slab.row(seq), start, stop)

    def import_kv(self, seq: Seq, blob: npt.NDArray[Any], tokens: int) -> None:
        """See ModelRunner."""
        self._slab.load(self._slab.row(seq), blob, tokens)
        self.forget_layout()
